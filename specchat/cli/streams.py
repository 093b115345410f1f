"""Standard input and output, whatever the shell connected them to; text that cannot steer a terminal; questions."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

import typer

from specchat.engine.protocol.text import safe_on_terminal
from specchat.errors import SpecchatError, UsageError, os_errors_as

if TYPE_CHECKING:
    from rich.table import Table

_PIPE_PATIENCE_S = 0.5
"""How long to wait for a first byte on a pipe when a prompt was given as well: perhaps no process writes to it."""

_WIDEST_TABLE = 400
"""In a pipe nothing is cut, and a line stays one that can be read."""

_LONGEST_INPUT_BYTES = 64 * 1024 * 1024
"""Far more than any context holds; without a limit a pipe without end would fill the memory."""


def open_missing_streams() -> None:
    """Connect streams that were closed to nothing, and let no character that an encoding lacks stop a command.

    The lowest free descriptor is the closed one; otherwise the next file that is opened would get it, and what is
    printed would end up in that file. Output is connected so that writing fails, as it would have: it is told then.
    """
    for name, mode, opened in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, opened), mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def table_width() -> int | None:
    """Columns for a table: those of the terminal (None), or in a file or pipe as many as the table likes."""
    return None if sys.stdout.isatty() else _WIDEST_TABLE


def plain_table(*headings: str, whole: int = 3) -> Table:
    """A table without borders; the texts of its first `whole` columns are never divided."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, no_wrap=place < whole, overflow="fold")
    return table


def flush_output() -> None:
    """Write what is left of the output, so that a full disk is reported and not only noticed at the exit.

    Raises:
        SpecchatError: standard output cannot be written.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise output_error(error) from None


def output_error(error: OSError) -> SpecchatError:
    """The line about output that could not be written; nothing more is written there."""
    drop_output()
    return SpecchatError(f"standard output cannot be written: {error.strerror or error}")


def drop_output() -> None:
    """Send the rest of standard output to nowhere: what is buffered would fail again at the exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def piped_text(have_prompt: bool) -> str:
    """The text on standard input, unless it is a terminal; with a prompt a silent pipe is not waited for.

    Raises:
        UsageError: it is not UTF-8, longer than any context, or cannot be read.
    """
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return ""
    if have_prompt and _is_pipe() and not select.select([sys.stdin], [], [], _PIPE_PATIENCE_S)[0]:
        return ""
    with os_errors_as(UsageError, "standard input cannot be read"):
        data = sys.stdin.buffer.read(_LONGEST_INPUT_BYTES + 1)
    if len(data) > _LONGEST_INPUT_BYTES:
        raise UsageError(f"standard input is longer than {_LONGEST_INPUT_BYTES >> 20} MiB, more than any context holds")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise UsageError(f"standard input is not UTF-8: line {line} holds the byte 0x{byte:02x}") from None
    return text.replace("\r\n", "\n").strip("\n")


def _is_pipe() -> bool:
    mode = os.fstat(sys.stdin.fileno()).st_mode
    return os.name != "nt" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


class SafeTerminal(io.TextIOWrapper):
    """A terminal that takes colours and progress lines, and shows all other codes as symbols."""

    def write(self, text: str) -> int:
        super().write(safe_on_terminal(text))
        return len(text)


def guard_terminals() -> None:
    """From now on print to terminals in this way; what goes into files and pipes stays as it is."""
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def _guarded(stream: TextIO) -> TextIO:
    if stream is None or not stream.isatty() or not hasattr(stream, "buffer"):
        return stream
    stream.flush()
    return SafeTerminal(stream.buffer, stream.encoding, stream.errors, line_buffering=True)


def confirmed(yes: bool, doing: str, question: str, otherwise: str) -> bool:
    """Whether the user agrees.

    Args:
        doing: what needs the answer, for the refusal, such as "removing chats".
        otherwise: printed where they do not want it.

    Raises:
        UsageError: standard input is not a terminal.
    """
    if yes:
        return True
    if not can_ask():
        raise UsageError(f"{doing} needs confirmation and standard input is not a terminal: add --yes")
    if typer.confirm(question):
        return True
    typer.echo(otherwise)
    return False


def can_ask() -> bool:
    return sys.stdin.isatty()
