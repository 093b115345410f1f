"""TOML files, parsed and checked strictly: every complaint names file, line, table and key."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from specchat.config.file_reading import open_regular
from specchat.errors import ConfigError, UsageError, cut, nearest, short
from specchat.settings import OPTIONS, Settings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    date: "a date",
}
_UNCHANGED = Settings()
_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True)
class TableLocation:
    """A table of a file, so that whatever is wrong with it can be pointed at."""

    file: Path
    text: str
    table: str = ""
    index: int = 0  # which of several [[table]]s

    def inside(self, table: str, index: int = 0) -> TableLocation:
        return dataclasses.replace(self, table=table, index=index)

    def where(self, key: str) -> str:
        """`models.toml, line 12: [pairs.smol]`."""
        line = self._line_of(key if key in self.text else key.rsplit(".", 1)[-1])
        table = f" [{_shown(self.table)}]" if self.table else ""
        return f"{self.file}{f', line {line}' if line else ''}:{table}"

    def says(self, key: str) -> str:
        """`models.toml, line 12: [pairs.smol] draft`."""
        return f"{self.where(key)} {_shown(key)}".rstrip()

    def error(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{self.says(key)} {problem}")

    def read(
        self, table: dict[str, Any], kinds: Mapping[str, type], required: tuple[str, ...] = (), within: str = ""
    ) -> dict[str, Any]:
        """The table's values, every key known and of its kind, none of the required ones missing."""
        for key, value in table.items():
            if key not in kinds:
                given = "" if isinstance(value, dict | list) else f"= {short(value)} "
                raise self.error(within + key, f"{given}is not known here{nearest(key, kinds)}")
            self.typed(within + key, value, kinds[key])
        for key in required:
            if key not in table:
                raise self.error(within + key, "is missing")
        return dict(table)

    def typed(self, key: str, value: Any, kind: type, allowed: str = "") -> Any:
        fits = isinstance(value, (int, float) if kind is float else kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"= {short(value)} is not {_WORDS.get(kind, 'a table')}{allowed}")
        return value

    def table_at(self, key: str, value: Any) -> dict[str, Any]:
        table: dict[str, Any] = self.typed(key, value, dict)
        return table

    def named(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise self.error("", f"= {short(name)} is not a valid name: letters, digits, '.', '_' and '-'")

    def settings(self, given: dict[str, Any]) -> dict[str, Any]:
        """The given settings in the form `Settings` holds them, each checked by its own option."""
        return {key: self._setting(key, value) for key, value in given.items()}

    def _setting(self, key: str, value: Any) -> Any:
        if key == "method_options":
            value = dict(flat_keys(self.table_at(key, value)))
        elif key == "stop":
            for text in (texts := self.typed(key, value, list)):
                self.typed(key, text, str)
            value = list(texts)
        elif option := OPTIONS.get(key):
            allowed = option.range_text()
            self.typed(key, value, _KINDS[option.kind], f" ({allowed})" if allowed else "")
        try:
            return _UNCHANGED.checked(key, value)
        except UsageError as error:
            named = "" if key in str(error) else f" {_shown(key)}:"
            raise ConfigError(f"{self.where(key)}{named} {error}") from None

    def _line_of(self, key: str) -> int | None:
        """The line that sets this key in this table, or the table's own; TOML readers do not tell."""
        header: int | None = None
        own, seen = not self.table, 0
        for number, line in enumerate(self.text.splitlines(), 1):
            if heading := re.match(r"\s*\[\[?([^\[\]]+)\]\]?\s*(#|$)", line):
                name = re.sub(r"[\"'\s]", "", heading[1])
                if not self.table and key and key == name.split(".")[0]:
                    return number
                own = name == self.table and seen == self.index
                seen += name == self.table
                header = number if own else header
            if own and key and re.search(rf"(^|[{{,])\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
                return number
        if header is None and "." in self.table:  # an inline table stands in its parent's lines
            return self.inside(self.table.rpartition(".")[0])._line_of(key)
        return header


def _shown(key: str) -> str:
    """A key as an error shows it: quoted unless it is a plain one."""
    return key if re.fullmatch(r"[\w. -]{0,100}", key, re.ASCII) else short(key)


def flat_keys(table: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """`"METHOD.OPTION" = value` and `METHOD.OPTION = value` mean the same, as `prompt.search` does among [keys]."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat_keys(value, f"{within}{key}.")
        else:
            yield within + key, value


_LARGEST_BYTES = 4 << 20
"""Far more than is written by hand; some parsers take time quadratic in the length."""

_DEEPEST = 16
"""Nothing that is read here is nested deeper than five levels; what walks tables may call itself for each."""


_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_LONG_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_PART}\.[ \t]*){{64}}", re.MULTILINE)
"""A key of very many parts: too deep in any case, and the parser takes time quadratic in their number."""


def parse(file: Path) -> tuple[TableLocation, dict[str, Any]]:
    """The file's text, as a place to point at, and its tables; ConfigError if it cannot be read or is not TOML."""
    text = read_text(file)
    return TableLocation(file, text), tables(file, text)


def parse_if_there(file: Path) -> tuple[TableLocation, dict[str, Any]] | None:
    """The same; None where there is no such file."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a folder above it is closed to us, or a link leads to itself
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    return parse(file)


def read_text(file: Path) -> str:
    """The file's text without a byte order mark; ConfigError if it cannot be read, is too large, or is not UTF-8."""
    try:
        with open_regular(file) as handle:
            data = handle.read(_LARGEST_BYTES + 1)
        if len(data) > _LARGEST_BYTES:
            raise ConfigError(f"{file} is larger than {_LARGEST_BYTES >> 20} MiB")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}, line {line} is not UTF-8: it holds the byte 0x{data[error.start]:02x}") from None


def tables(file: Path, text: str) -> dict[str, Any]:
    """The tables that the text of the file describes; ConfigError if it is not TOML, or nested too deep."""
    if _LONG_KEY.search(text):
        raise _too_deep(file)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {cut(str(error))}") from None
    except ValueError:  # Python reads no number of so many digits
        line = text.count("\n", 0, found.start()) + 1 if (found := re.search(r"[0-9_]{4000}", text)) else 0
        raise ConfigError(f"{file}{f', line {line}' if line else ''}: a number is too long") from None
    except RecursionError:
        raise _too_deep(file) from None
    level: list[Any] = [data]
    for _ in range(_DEEPEST):
        inner = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        level = [value for value in inner if isinstance(value, dict | list)]
    if level:
        raise _too_deep(file)
    return data


def _too_deep(file: Path) -> ConfigError:
    return ConfigError(f"{file} is nested deeper than {_DEEPEST} levels")
