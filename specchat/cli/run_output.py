"""Where the output of a run goes: standard output in the chosen form, a recording, progress on standard error."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from specchat import __version__
from specchat.cli.flags import Output
from specchat.config.file_reading import open_to_write
from specchat.engine.protocol import events
from specchat.engine.protocol.codec import encode
from specchat.engine.protocol.environment import machine
from specchat.engine.protocol.stage_text import loading_text, seconds_left
from specchat.engine.protocol.text import one_line, visible
from specchat.errors import SpecchatError, UsageError, cut, os_errors_as

_LONGEST_COMMAND = 4096
"""Characters; what is longer could not be read back."""


class Record:
    """The file of `--record`. What the disk does not take costs the recording, never the reply.

    The header waits until there is something to record: a command that is refused leaves what was there before.
    """

    def __init__(self, file: Path) -> None:
        """The file, opened to be written and as it was.

        Raises:
            UsageError: it cannot be written.
        """
        self.problem = ""
        self._file = file
        self.header = b""  # stands before the first line that is written
        self._begun = False
        self._is_new = not os.path.lexists(file)
        with os_errors_as(UsageError, f"--record {file} cannot be written"):
            self._out = os.fdopen(open_to_write(file, 0o600), "wb", buffering=0)

    def write(self, line: bytes) -> None:
        """Write a line, unless an earlier one could not be written."""
        try:
            if not self._begun:
                self._begin()
                line = self.header + line
            while line and not self.problem:
                line = line[self._out.write(line) :]
        except OSError as error:
            self.problem = f"--record {self._file} is not complete: {error.strerror}"

    def _begin(self) -> None:
        self._begun = True
        if stat.S_ISREG(os.fstat(self._out.fileno()).st_mode):  # a pipe, or a terminal, has no length
            os.ftruncate(self._out.fileno(), 0)

    def close(self) -> None:
        """Let the file go; some disks say only now that they are full."""
        try:
            self._out.close()
            if self._is_new and not self._begun:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            self.problem = self.problem or f"--record {self._file} is not complete: {error.strerror}"


class Outputs:
    """One run's output; entered, it writes the recording's header."""

    def __init__(self, output: Output, record: Path | None, texts: Collection[str] = ()) -> None:
        """Nothing written yet.

        Args:
            texts: arguments that the header leaves out of the command: prompts, which `started` holds in full.
        """
        self._output = output
        self._texts = texts
        self._progress = sys.stderr.isatty()
        self._record = Record(record) if record is not None else None
        self._shown = False

    def __enter__(self) -> Outputs:
        self.event(
            events.Header(
                version=events.PROTOCOL,
                specchat=__version__,
                made=datetime.now(UTC).isoformat(timespec="seconds"),
                command=command_line(sys.argv[1:], self._texts),
                machine=machine(),
            )
        )
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._record is not None:
            self._record.close()
            if self._record.problem and failed is None:
                raise SpecchatError(self._record.problem)

    @property
    def tell_rounds(self) -> bool:
        """Whether any output shows rounds, not only their text."""
        return self._record is not None or self._output is Output.jsonl

    def event(self, event: events.Event) -> None:
        """Every event goes into the recording; except those from before the pair was ready."""
        if not self.tell_rounds or isinstance(
            event, events.Hello | events.Loading | events.Notice | events.Failed | events.Died
        ):
            return
        line = encode(event)
        if self._record is not None and isinstance(event, events.Header):
            self._record.header = line
        elif self._record is not None:
            self._record.write(line)
        if self._output is Output.jsonl:
            sys.stdout.write(line.decode())
            sys.stdout.flush()

    def text(self, text: str) -> None:
        if self._output is Output.text:
            self.clear_progress()
            sys.stdout.write(visible(text))
            sys.stdout.flush()

    def notice(self, text: str) -> None:
        self.clear_progress()
        print(f"specchat: {one_line(text)}", file=sys.stderr)

    def loading(self, event: events.Loading) -> None:
        if not self._progress:
            return
        bytes_known = event.total and event.unit == "bytes"
        share = f" {100 * event.done / event.total:3.0f} % of {event.total / 1e6:.0f} MB" if bytes_known else ""
        rate = f", {event.rate / 1e6:.1f} MB/s" if event.rate else ""
        left = seconds_left(event)
        still = f", about {left:.0f} s left" if left else ""
        sys.stderr.write(f"\r\x1b[K{one_line(loading_text(event))}{share}{rate}{still}")
        sys.stderr.flush()
        self._shown = True

    def summary(self, result: dict[str, Any], line: str) -> None:
        """The end: one object, or one line on standard error where that is a terminal."""
        if self._output is Output.json:
            self.clear_progress()
            print(msgspec.json.encode(result).decode())
        elif self._output is Output.text:
            print()
            if self._progress:
                sys.stderr.write(line + "\n")

    def clear_progress(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def command_line(arguments: Sequence[str], texts: Collection[str]) -> str:
    """The command as it can be typed again, with `…` in place of these texts; its middle is left out if it is long."""
    shown = []
    for argument in arguments:
        option, is_option, value = argument.partition("=")
        if argument in texts:
            shown.append("…")
        elif is_option and option.startswith("-") and value in texts:
            shown.append(f"{option}=…")
        else:
            shown.append(shlex.quote(argument))
    return cut(" ".join(["specchat", *shown]), _LONGEST_COMMAND)


def write_recording_page(file: Path, html: Path) -> None:
    """Write a page that plays a recording, as a new file.

    Raises:
        RecordingError: the file is no recording.
        UsageError: there is a file of this name, or it cannot be written.
    """
    from specchat.engine.client.replay import Recording
    from specchat.reply_page import page, turns_of
    from specchat.tui.system.desktop import write_new_file

    recording = Recording.read(file)
    ready, header = recording.ready(), recording.header
    models = f"{ready.target}{f' + {ready.draft}' if ready.draft else ''}"
    about = " · ".join(part for part in (models, ready.dtype, ready.device, header.machine, header.made[:10]) if part)
    turns = turns_of(recording.events)
    question = next((turn.text for turn in turns if turn.text), "A reply, round by round")
    text = page(cut(question, 90), f"specchat · {about}", turns)
    write_new_file(text, html)
    print(f"written to {html.absolute()}", file=sys.stderr)
