"""Changing the user's TOML files: comments survive, nothing unreadable is ever written, and a crash loses nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Item, Table

from specchat.config.directories import private_dir
from specchat.config.kept_files import locked, replacing
from specchat.config.toml_file import TableLocation, parse_if_there, tables
from specchat.errors import ConfigError

Document = MutableMapping[str, Any]
Check = Callable[[TableLocation, dict[str, Any]], object]
"""Reads the changed file the way specchat will read it later; raises ConfigError where it could not."""

_PATIENCE_S = 2.0
"""For another program that is changing the file: a change takes some hundredths of a second."""


class NotATableError(Exception):
    """There is something else where a table is to be changed; `change_file` says where."""


def change_file(file: Path, change: Callable[[Document], None], check: Check) -> None:
    """Change a TOML file in one step; it stays as it is if the old or the new content cannot be read.

    Raises:
        ConfigError: the file is not TOML, the result would be refused, the disk does not take it, or it is a link
            into a folder that is not there.
    """
    real = Path(os.path.realpath(file))  # where it will be written, also if it is a link
    try:
        if not real.parent.exists():
            _refuse_lost_link(file)
            private_dir(real.parent)
        with locked(real.with_name(f".{real.name}.lock"), _PATIENCE_S):
            _change_alone(file, change, check)
    except (OSError, TOMLKitError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file} cannot be changed: {reason}") from None


def _refuse_lost_link(file: Path) -> None:
    """What a link leads to may be on a disk that is not mounted: folders made there would be in its way."""
    link = next((step for step in (file, *file.parents) if step.is_symlink() and not step.exists()), None)
    if link is not None:
        what = "it" if link == file else str(link)
        raise ConfigError(f"{file} cannot be changed: {what} is a link to {os.readlink(link)}, which is not there")


def _change_alone(file: Path, change: Callable[[Document], None], check: Check) -> None:
    """Change it while nothing else does: what is read is still there when the file is replaced."""
    found = parse_if_there(file)  # a broken file is reported with its line and left alone
    document = tomlkit.parse(found[0].text if found else "")
    try:
        change(document)
    except NotATableError as error:
        check(*found) if found else None  # says which key, and on which line
        raise ConfigError(f"{file} cannot be changed: {error}") from None
    text = tomlkit.dumps(document)
    read_back, meant = tables(file, text), document.unwrap()
    if read_back != meant:  # a table was put between the dotted keys of another
        table = ".".join(_differing(read_back, meant))
        raise ConfigError(
            f"{file}: the keys {table}.… cannot be changed here by specchat; write them as a [{table}] table"
        )
    check(TableLocation(file, text), read_back)
    replace_text(file, text)


def _differing(found: Mapping[str, Any], meant: Mapping[str, Any]) -> tuple[str, ...]:
    """The way to the table in which keys are missing that are meant to be there."""
    if meant.keys() <= found.keys():
        for name, value in meant.items():
            if isinstance(value, dict) and isinstance(found[name], dict) and value != found[name]:
                return (name, *_differing(found[name], value))
    return ()


def replace_text(file: Path, text: str) -> None:
    """Put the text in the file's place in one step; a link stays a link, and the mode stays what it was."""
    file = file.resolve()
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    with replacing(file, mode=mode) as draft:
        draft.write_text(text, encoding="utf-8")


def put(document: Document, path: tuple[str, ...], key: str, value: Any) -> None:
    """Set a key of the table at `path`; tables that are missing are made."""
    table = document
    for depth, name in enumerate(path):
        if name not in table:
            inline, above = isinstance(table, InlineTable), depth < len(path) - 1
            table[name] = tomlkit.inline_table() if inline else tomlkit.table(is_super_table=above)
        table = as_table(table[name], name)
    tail = _loosen_tail(table) if key not in table else []
    table[key] = list(value) if isinstance(value, tuple) else value
    for item in tail:
        table.value.append(None, item)  # type: ignore[attr-defined]


def as_table(value: Any, name: str) -> Document:
    """The value, which must be one table; a file may have something else there."""
    if not isinstance(value, MutableMapping):
        raise NotATableError(f"{name} is not a table")
    return value


def _loosen_tail(table: Document) -> list[Item]:
    """Take off the blank lines and comments after a table's last key: they belong to what follows."""
    tail: list[Item] = []
    if type(table) is Table:
        body = table.value.body
        while body and body[-1][0] is None:
            tail.insert(0, body.pop()[1])
    return tail


def take_out(document: Document, path: tuple[str, ...], key: str) -> bool:
    """Remove a key of the table at `path`, and tables that nothing is left in; whether it was there."""
    tables = [document]
    for name in path:
        if not isinstance(below := tables[-1].get(name), MutableMapping):
            return False
        tables.append(below)
    if tables[-1].pop(key, None) is None:
        return False
    for name, above, table in zip(reversed(path), reversed(tables[:-1]), reversed(tables[1:]), strict=True):
        commented = isinstance(table, Table) and table.as_string().strip()
        if table or commented:
            break
        del above[name]
    return True
