"""`specchat datastore`: build, list and remove stores of text to look guesses up in; texts from files and chats."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specchat.cli.chats import AsJson, reading
from specchat.cli.flags import model_names
from specchat.cli.progress import sized
from specchat.cli.streams import confirmed
from specchat.engine.protocol.text import safe_in_json, visible
from specchat.errors import StoreError, UsageError, nearest, os_errors_as, short

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specchat.config.datastore_files import DatastoreFile, DatastoreHeader
    from specchat.core.vocabulary import TokenTable

app = typer.Typer(help="Stores of text for the drafter `datastore`: build, list, remove.", no_args_is_help=True)

_MOST_TOKENS = 8_000_000

_MOST_STATES = 1 << 18
"""No more tokens are stored with states: of SmolLM2-135M those take 300 MB."""

_WINDOW_TOKENS = 512
"""The target reads a text in pieces of so many tokens, each from nothing."""

Named = tuple[str, str]
"""The name of a file or chat, and a text from it."""


def _known() -> list[str]:
    from specchat.config.datastore_files import datastore_files

    return [one.name for one in datastore_files()]


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="the datastore's name")],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="text files and folders; all text files in a folder are read, except hidden ones"),
    ] = None,
    pair: Annotated[
        str | None, typer.Option("--pair", help="the pair whose target it is for", autocompletion=model_names)
    ] = None,
    chats: Annotated[bool, typer.Option("--chats", help="also read your chats")] = False,
    tokens: Annotated[
        int,
        typer.Option(
            metavar="<int>",
            min=1,
            max=1 << 28,
            help="the most tokens to store; each takes 6 or 8 bytes of disk, and 50 of memory meanwhile",
        ),
    ] = _MOST_TOKENS,
    states: Annotated[
        bool,
        typer.Option(
            "--states",
            help="also keep the target's hidden states, by which places are found where it was in a like state: it "
            "reads all texts, and each token takes twice its width in bytes more; 262,144 tokens at most",
        ),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="replace the datastore of this name")] = False,
) -> None:
    """Build a datastore from files, folders or your chats. It stays on this machine, and only you can read it."""
    from specchat.bench.configurations import settings_in_force
    from specchat.config import load_catalog
    from specchat.config.datastore_files import datastore_path

    file, catalog = datastore_path(name), load_catalog()
    if file.exists() and not replace:
        raise UsageError(f"there is a datastore {short(name)} already; --replace builds it again")
    if not paths and not chats:
        raise UsageError("a datastore is built from files, folders or your chats: name some, or add --chats")
    target = catalog.model(catalog.pair(settings_in_force({"pair": pair} if pair is not None else {}).pair).target)
    named = [*texts_of_files(paths or ()), *(texts_of_chats() if chats else ())]
    texts = [text for _, text in named]
    if not texts:
        raise UsageError("no text was found to build it from")
    typer.echo(f"reading {sum(map(len, texts)):,} characters as tokens of {target.name}", err=True)
    from specchat.decoding.vocabulary import TransformersVocabulary
    from specchat.models.backends.scripted import ScriptedVocabulary
    from specchat.models.hub.model_state import locate
    from specchat.models.model_loading import load_tokenizer

    vocabulary: TokenTable = ScriptedVocabulary()
    if not target.scripted:
        vocabulary = TransformersVocabulary(*load_tokenizer(target.name, locate(target)))
    most, further = tokens, "--tokens takes more"
    if states and tokens > _MOST_STATES:
        most, further = _MOST_STATES, "--states keeps no more"
    found = list(_encoded(named, vocabulary, most, further))
    _write(file, target.name, vocabulary, found, _states_of(pair, [text for _, text in found]) if states else None)


@app.command("list")
def list_datastores(as_json: AsJson = False) -> None:
    """The datastores, the newest first."""
    from specchat.config.datastore_files import datastore_files

    found = datastore_files()
    if as_json:
        _print_json(found)
        return
    if not found:
        typer.echo("no datastores; `specchat datastore build` makes one from your files or chats", err=True)
    for one in found:
        size, header = sized(one.file.lstat().st_size), one.header
        if header is None:
            typer.echo(visible(f"{one.name}  {size}  cannot be used: {one.problem}"))
            continue
        what = f"{_contents(header)}, for {header.target}, built {header.made[:10]}"
        typer.echo(visible(f"{one.name}  {size}  {what}"))


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(help="their names", autocompletion=_known)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Delete datastores for good."""
    from specchat.config.datastore_files import datastore_files

    found = {one.name: one.file for one in datastore_files()}
    for name in names:
        if name not in found:
            raise UsageError(f"no datastore is called {short(name)}{nearest(name, found)}")
    chosen = list(dict.fromkeys(names))
    if not confirmed(yes, "removing datastores", f"{', '.join(chosen)}: delete for good?", "nothing removed"):
        return
    for name in chosen:
        with os_errors_as(StoreError, f"{found[name]} cannot be removed"):
            size = found[name].lstat().st_size
            found[name].unlink()
        typer.echo(f"removed {name}, {sized(size)}")


def _print_json(found: Iterable[DatastoreFile]) -> None:
    """A list of objects; of one that cannot be used, `problem` says why."""
    import msgspec

    objects = []
    for one in found:
        about = {"name": one.name, "bytes": one.file.lstat().st_size, "problem": one.problem or None}
        if (header := one.header) is not None:
            about |= {"target": header.target, "texts": header.texts, "made": header.made}
            about["tokens"] = header.tokens - header.texts
        objects.append(about)
    typer.echo(safe_in_json(msgspec.json.format(msgspec.json.encode(objects)).decode()))


def _contents(header: DatastoreHeader) -> str:
    """`1 token of 1 text`, `1,204 tokens of 3 texts`."""
    tokens, texts = header.tokens - header.texts, header.texts
    return f"{tokens:,} token{'s' if tokens != 1 else ''} of {texts:,} text{'s' if texts != 1 else ''}"


def _encoded(
    named: Iterable[Named], vocabulary: TokenTable, most: int, further: str
) -> Iterator[tuple[str, list[int]]]:
    """The texts' names and tokens, until there are so many of those; `further` says what can be done about that."""
    count = 0
    for name, text in named:
        found = vocabulary.encode(text)[: most - count]
        count += len(found)
        if found:
            yield name, found
        if count == most:
            typer.echo(f"stopped at {most:,} tokens; {further}", err=True)
            return


def _write(
    file: Path,
    target: str,
    vocabulary: TokenTable,
    named: list[tuple[str, list[int]]],
    states: tuple[NDArray[np.float16], int] | None,
) -> None:
    import msgspec

    from specchat.config.datastore_files import DatastoreHeader
    from specchat.config.kept_files import replacing
    from specchat.core.vocabulary import table_sha256
    from specchat.indexes.datastore import joined, token_width, write_datastore

    size, made = vocabulary.size, datetime.now(UTC).isoformat(timespec="seconds")
    texts, names = [text for _, text in named], list[tuple[int, str]]()
    starts = itertools.accumulate((len(text) + 1 for text in texts), initial=0)
    for start, (name, _) in zip(starts, named, strict=False):
        if not names or names[-1][1] != name:
            names.append((start, name))
    tokens = joined(texts, size)
    header = DatastoreHeader(target, table_sha256(vocabulary), size, token_width(size), len(tokens), len(texts), made)
    if states is not None:
        header = msgspec.structs.replace(header, state_width=states[0].shape[1])
    typer.echo(f"sorting {len(tokens):,} tokens; the file takes {sized(header.file_bytes)}", err=True)
    problem = f"{file} cannot be written"
    with os_errors_as(StoreError, problem), replacing(file) as draft, draft.open("wb") as opened:
        write_datastore(opened, header, tokens, names, *(states or ()))
    typer.echo(f"{file.stem}: {_contents(header)}, {sized(file.lstat().st_size)}")
    typer.echo(f"try it: specchat --drafter datastore --set datastore.store={file.stem}")


_LARGEST_BYTES = 64 << 20
"""Larger files in folders are left out: logs and data, not texts."""

_MOST_BYTES = 1 << 30
"""A file that is named is read whole."""

_LOOKED_AT_BYTES = 8192
"""A zero byte among the first so many bytes tells that a file is not text."""

_PIECE_CHARACTERS = 1 << 20
"""Texts are handed on in pieces of about so many characters, cut between lines."""

_MOST_CHATS = 1_000_000


def texts_of_files(paths: Sequence[Path]) -> Iterator[Named]:
    """The names and texts of files, and of the files below folders, in order.

    A file that is named must be UTF-8 text. In folders, what is hidden, a link, not text, or too large is skipped.

    Raises:
        UsageError: a path does not exist, or a named file is not text.
    """
    for path in paths:
        if os.path.isdir(path):  # never raises
            for file in _files_below(path):
                text = _text_of(file) if file.stat().st_size <= _LARGEST_BYTES else None
                yield from _pieces(_name_of(Path(path.name) / file.relative_to(path)), text or "")
            continue
        text = _text_of(path)
        if text is None:
            raise UsageError(f"{path} is not UTF-8 text")
        yield from _pieces(_name_of(Path(path.name)), text)


def texts_of_chats() -> Iterator[Named]:
    """The texts of user and model in the chats that are kept on this machine.

    Raises:
        StoreError: the chats cannot be read.
    """
    from specchat.store.database import default_path

    if not default_path().exists():
        return
    with reading() as chats:
        for found in chats.summaries(limit=_MOST_CHATS):
            for message in chats.chat(found.id)[1]:
                yield from _pieces(f"the chat {found.title}", message.content)


def _files_below(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(where) / name
            if not name.startswith(".") and os.path.isfile(file) and not file.is_symlink():
                yield file


def _text_of(file: Path) -> str | None:
    """The file's text, or None where it is not UTF-8."""
    from specchat.config.file_reading import open_file_or_pipe

    with os_errors_as(UsageError, f"{file} cannot be read"), open_file_or_pipe(file) as opened:
        data = opened.read(_LOOKED_AT_BYTES)
        if b"\0" in data:
            return None
        data += opened.read(_MOST_BYTES + 1 - len(data))
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{file} is larger than {_MOST_BYTES >> 20} MiB; split it")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _states_of(pair: str | None, texts: list[list[int]]) -> tuple[NDArray[np.float16], int]:
    """The states of the texts' tokens after the target's last layer but one, and that layer; of end marks zeros."""
    from specchat.bench.configurations import load_pair, settings_in_force

    settings = settings_in_force({"pair": pair} if pair is not None else {}).but({"drafter": "none"})
    target = load_pair(settings).target.model

    import numpy as np
    import torch

    from specchat.core.states import HiddenStateSink, TextStates
    from specchat.models.decoder.cache_rows import LAZY_TOKENS

    layer = max(0, target.layers - 2)
    window = max(1, min(_WINDOW_TOKENS, target.context_tokens - LAZY_TOKENS - 1))
    if not target.flexible_passes:
        raise UsageError("--states needs a target that shows its layers' states: backend = own")
    rows = np.zeros((sum(len(text) + 1 for text in texts), target.hidden_size), np.float16)
    at, taken = 0, list[TextStates]()
    sink = HiddenStateSink(frozenset({layer}), taken.append)
    for text in texts:
        for start in range(0, len(text), window):
            first = max(0, min(start, len(text) - window))  # the last piece begins earlier, to see as much as others
            taken.clear()
            target.prefill(())
            piece = text[first : first + window]
            target.prefill([*piece, *piece[-1:] * (LAZY_TOKENS + 1)], tap=sink)  # of fewer tokens reading is put off
            said = torch.cat([part.layers[layer].float().cpu() for part in taken])[: len(piece)]
            rows[at + first : at + first + len(piece)] = said.clamp(-65504, 65504).half().numpy()
        at += len(text) + 1
        typer.echo(f"read {at:,} of {len(rows):,} tokens", err=True)
    target.prefill(())
    return rows, layer


def _name_of(path: Path) -> str:
    """A path as text; a name that is not UTF-8 has replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")


def _pieces(name: str, text: str) -> Iterator[Named]:
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE_CHARACTERS) + 1 or len(text)
        if text[start:end].strip():
            yield name, text[start:end]
        start = end
