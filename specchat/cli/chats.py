"""`specchat chats`: list, read, search, export, import and remove the chats that were kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specchat.cli.streams import confirmed
from specchat.engine.protocol.text import safe_in_json, visible
from specchat.errors import SpecchatError, short

if TYPE_CHECKING:
    from specchat.store.chats import Chats
    from specchat.store.records import Summary

_KEPT_ELSEWHERE = "Files you exported, datastores, texts of trainings and backups you made keep what they hold."

app = typer.Typer(help="List, read, search, export, import and remove chats.", no_args_is_help=True)


def chat_ids() -> list[tuple[str, str]]:
    """Every id, and its chat's title, for shell completion."""
    with suppress(SpecchatError), reading() as chats:
        return [(chat.id, _clean(chat.title)) for chat in chats.summaries()]
    return []


_ID_HELP = "a chat's id, or its beginning, as `specchat chats list` shows it"
Id = Annotated[str, typer.Argument(help=_ID_HELP, autocompletion=chat_ids)]
AsJson = Annotated[bool, typer.Option("--json", help="a JSON list of objects")]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="<int>", min=1, max=1_000_000, help="how many at most")]


@app.command("list")
def list_chats(limit: Limit = 50, as_json: AsJson = False) -> None:
    """The chats, the newest first."""
    _print(_summaries("", limit), as_json, nothing="no chats have been kept yet")


@app.command()
def search(
    words: Annotated[list[str], typer.Argument(help="words, or their beginnings; all of them in one message")],
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Chats whose text or title contains these words."""
    said = " ".join(words)
    _print(_summaries(said, limit), as_json, nothing=f"no chat contains {short(said)}", previews=True)


@app.command()
def show(id: Id) -> None:
    """Print a chat, the branch that was read last."""
    from specchat.tui.state.stored_chat import as_markdown

    with reading() as chats:
        chat, messages = chats.chat(chats.find(id))
    typer.echo(visible(as_markdown(chat, messages)), nl=False)


@app.command()
def export(
    id: Id,
    file: Annotated[
        Path | None,
        typer.Argument(help="a new file; its ending, .md, .html or .json, sets the format", show_default=False),
    ] = None,
    format: Annotated[
        str, typer.Option("--format", "-f", help="md, html or json (json holds everything, and can be imported)")
    ] = "",
) -> None:
    """Write a chat to a file, or to standard output."""
    from specchat.tui.state.stored_chat import FORMATS
    from specchat.tui.system.desktop import format_of, write_new_file

    kind = format_of(format, file, FORMATS)
    with reading() as chats:
        text = FORMATS[kind](*chats.chat(chats.find(id)))
    if file is None:
        sys.stdout.write(text)
    else:
        write_new_file(text, file)
        typer.echo(f"written to {file.absolute()}", err=True)


@app.command("import")
def import_chat(
    files: Annotated[list[Path], typer.Argument(help="files that `specchat chats export --format json` wrote")],
) -> None:
    """Import chats that were exported as JSON: all of them, or none."""
    from specchat.store.chat_json import read_file, take_in

    read = [read_file(file) for file in files]
    with writing() as chats, chats.transaction():
        ids = [take_in(chats, exported) for exported in read]
    for id, exported in zip(ids, read, strict=True):
        typer.echo(f"{id}  {_clean(exported.chat.title)}")


@app.command()
def remove(
    ids: Annotated[list[str], typer.Argument(help="ids, or their beginnings", autocompletion=chat_ids)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Delete chats for good."""
    from specchat.store.database import default_path
    from specchat.store.writer import erase

    with reading() as chats:
        found = [chats.chat(chats.find(id))[0] for id in ids]
    listed = "\n".join(f"{chat.id}  {_clean(chat.title)}" for chat in found)
    if not confirmed(yes, "removing chats", f"{listed}\n{_KEPT_ELSEWHERE}\nDelete for good?", "nothing removed"):
        return
    with writing() as chats:
        with chats.transaction():
            removed = chats.remove(*(chat.id for chat in found))
        left = erase(default_path(), chats, removed)
    for line in left:
        typer.echo(f"specchat: {line}", err=True)
    typer.echo(f"{len(found)} removed")


@contextmanager
def reading() -> Iterator[Chats]:
    """The chats of this machine, to be read; nothing is printed within: failed output is no error of their file."""
    from specchat.store.chats import Chats
    from specchat.store.database import default_path, open_to_read

    with open_to_read(default_path()) as connection:
        yield Chats(connection)


@contextmanager
def writing() -> Iterator[Chats]:
    from specchat.store.chats import Chats
    from specchat.store.database import default_path, open_to_write, saying

    path = default_path()
    connection, remark = open_to_write(path)
    if remark:
        typer.echo(f"specchat: {remark}", err=True)
    with closing(connection), saying(path):
        yield Chats(connection)


def _summaries(words: str, limit: int) -> list[Summary]:
    """The chats that say the words, or all; none where none have been kept."""
    from specchat.store.database import default_path

    if not default_path().exists():
        return []
    with reading() as chats:
        return chats.summaries(words, limit)


def _print(summaries: Sequence[Summary], as_json: bool, *, nothing: str, previews: bool = False) -> None:
    """Print the chats; where there are none, `nothing` on standard error."""
    import msgspec

    if as_json:
        typer.echo(safe_in_json(msgspec.json.format(msgspec.json.encode(summaries)).decode()))
        return
    if not summaries:
        typer.echo(nothing, err=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for line, style in _lines(summaries, previews):
        if console.is_terminal:
            console.print(Text(line, style), no_wrap=True, overflow="ellipsis")
        else:
            typer.echo(line)


def _lines(summaries: Sequence[Summary], previews: bool) -> Iterator[tuple[str, str]]:
    """A line for each chat and its style. Titles come last, so that a narrow window cuts them and never an id."""
    from specchat.tui.text.numbers import when

    now = datetime.now().astimezone()
    rows = [(_clean(chat.id), when(chat.updated, now), f"{chat.messages:,}", _clean(chat.title)) for chat in summaries]
    headings = ("id", "written", "messages", "title")
    widths = [max(len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]

    def line(id: str, written: str, count: str, title: str) -> str:
        return f"{id:<{widths[0]}}  {written:<{widths[1]}}  {count:>{widths[2]}}  {title}"

    yield line(*headings), "bold"
    for chat, row in zip(summaries, rows, strict=True):
        yield line(*row), ""
        if previews:
            yield " " * (sum(widths[:3]) + 6) + _clean(chat.preview), "dim"


def _clean(text: str) -> str:
    return visible(" ".join(text.split()))
