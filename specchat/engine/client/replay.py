"""Play a recording as if it were an engine: the same events at the same pace, and no model at all.

A recording is a `Header` line followed by events, one JSON object per line.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from specchat.config.file_reading import open_file_or_pipe
from specchat.engine.client.client import take_all
from specchat.engine.protocol.codec import EventReader
from specchat.engine.protocol.commands import Cancel, Change, Command, Generate, Load, Quit
from specchat.engine.protocol.events import (
    PROTOCOL,
    Event,
    Failed,
    Finished,
    Header,
    Hello,
    Prefilled,
    Ready,
    RoundDone,
    Started,
)
from specchat.errors import RecordingError

SLOWEST, FASTEST = 1 / 16, 16.0
PAUSE_BETWEEN_REPLIES_S = 1.5

LARGEST_BYTES = 512 * 2**20
"""A recording takes about a kilobyte a round; this is more than a day of them."""


@dataclass(frozen=True)
class Recording:
    """The header and events of one recording."""

    header: Header
    events: tuple[Event, ...]
    truncated: bool = False  # the last line was cut off, as when the recorder was killed

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Read a recording from its file; raises RecordingError naming the file and the line."""
        try:
            with open_file_or_pipe(path) as file:
                data = file.read(LARGEST_BYTES + 1)
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            why = getattr(error, "strerror", None) or error
            raise RecordingError(f"{path}: the recording cannot be read: {why}") from None
        if len(data) > LARGEST_BYTES:
            raise RecordingError(f"{path}: the file is larger than {LARGEST_BYTES >> 20} MiB, so it is not a recording")
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: bytes, name: str) -> Recording:
        """Read a recording from its bytes; `name` is what errors call it."""
        lines = data.split(b"\n")
        unended = lines.pop() if lines else b""
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        last = [(len(lines) + 1, unended)] if unended.strip() else []
        reader = EventReader()
        header = _header(numbered or last, name, reader)
        events = [_event(line, number, name, reader) for number, line in numbered[1:]]
        truncated = False
        for number, line in last if numbered else []:
            try:
                events.append(_event(line, number, name, reader))
            except RecordingError:
                truncated = True
        if not any(isinstance(event, Started) for event in events):
            raise RecordingError(f"{name}: the recording holds no reply")
        return cls(header, tuple(events), truncated)

    def first(self, kind: type[Any]) -> Any | None:
        return next((event for event in self.events if isinstance(event, kind)), None)

    def replies(self) -> list[tuple[Event, ...]]:
        """The events of each reply, from its Started on."""
        starts = [index for index, event in enumerate(self.events) if isinstance(event, Started)]
        ends = [*starts[1:], len(self.events)]
        return [self.events[start:end] for start, end in zip(starts, ends, strict=True)]

    def ready(self) -> Ready:
        """The recorded engine's Ready, or one made up from the first reply where none was recorded."""
        if (ready := self.first(Ready)) is not None:
            return ready  # type: ignore[no-any-return]
        begun = self.first(Started)
        assert begun is not None, "a recording holds a reply"
        return Ready(begun.pair, begun.pair, None, "", "", 0, 0, 0, 0.0, begun.settings, begun.loss)


def _header(numbered: list[tuple[int, bytes]], name: str, reader: EventReader) -> Header:
    if not numbered:
        raise RecordingError(f"{name}: the file is empty, so it is not a recording")
    number, line = numbered[0]
    header = _event(line, number, name, reader)
    if not isinstance(header, Header):
        tag = type(header).__struct_config__.tag
        raise RecordingError(f"{name}, line {number}: a recording begins with a header, this is a {tag!r} event")
    if header.version != PROTOCOL:
        raise RecordingError(
            f"{name}, line {number}: the recording has version {header.version}, this specchat reads version {PROTOCOL}"
        )
    return header


def _event(line: bytes, number: int, name: str, reader: EventReader) -> Event:
    try:
        return reader.read(line)
    except msgspec.DecodeError as error:
        raise RecordingError(f"{name}, line {number}: this is not an event: {error}") from None


def timeline(recording: Recording) -> Iterator[tuple[float, Event]]:
    """Every event of every reply with the seconds to wait before it, at recorded speed."""
    for number, reply in enumerate(recording.replies()):
        at_s = 0.0
        for event in reply:
            if isinstance(event, Header | Hello | Ready):
                continue
            wait_s = PAUSE_BETWEEN_REPLIES_S if isinstance(event, Started) and number else 0.0
            if isinstance(event, Prefilled | RoundDone | Finished):
                wait_s = max(0.0, event.at_s - at_s)
                at_s = max(at_s, event.at_s)
            yield wait_s, event


class Player:
    """A recording being played. A `Link`; `wake` is called from its own thread after events became due.

    Playing begins with the first Load. Nothing is asked of the recording: it answers Generate and Change
    with Failed, and Cancel by pausing.
    """

    def __init__(self, recording: Recording, wake: Callable[[], None] | None = None, speed: float = 1.0) -> None:
        self.recording = recording
        self._wake = wake or (lambda: None)
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._timeline = list(timeline(recording))
        self._next = 0
        self._wait_s = 0.0  # recorded seconds until the next event
        self.speed = min(FASTEST, max(SLOWEST, speed))  # recorded seconds per second
        self.paused = self._closed = False
        self._playing = False
        hello = recording.first(Hello)
        self._put(hello or Hello(PROTOCOL, recording.header.specchat, [], []))
        threading.Thread(target=self._play, name="replay", daemon=True).start()

    @property
    def ended(self) -> bool:
        return self._next >= len(self._timeline)

    @property
    def progress(self) -> tuple[int, int]:
        """Rounds played, and rounds in the recording."""
        rounds = [isinstance(event, RoundDone) for _, event in self._timeline]
        return sum(rounds[: self._next]), sum(rounds)

    def send(self, command: Command) -> None:
        """Answer a command as far as a recording can."""
        match command:
            case Load():
                self._put(self.recording.ready())
                with self._changing():
                    self._playing = True
            case Cancel():
                self.pause()
            case Generate(id=id):
                self._put(Failed("EngineError", "a recording cannot answer", id=id, during="generate"))
            case Change():
                self._put(Failed("EngineError", "a recording cannot be changed", during="change"))
            case Quit():
                self.close()

    def drain(self) -> list[Event]:
        return take_all(self._queue)

    def close(self) -> None:
        with self._changing():
            self._closed = True

    def pause(self) -> None:
        with self._changing():
            self.paused = True

    def resume(self) -> None:
        with self._changing():
            self.paused = False

    def faster(self, factor: float) -> None:
        with self._changing():
            self.speed = min(FASTEST, max(SLOWEST, self.speed * factor))

    def step(self) -> None:
        """Play up to and including the next round at once, then hold still."""
        with self._changing():
            self.paused = True
            while not self.ended:
                event = self._take()
                self._queue.put(event)
                if isinstance(event, RoundDone | Finished):
                    break
        self._wake()

    def rewind(self) -> None:
        with self._changing():
            self._next, self._wait_s, self.paused = 0, 0.0, False

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()

    def _play(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                if not self._playing or self.paused or self.ended:
                    self._changed.wait()
                    continue
                if self._next == 0:
                    self._wait_s = self._timeline[0][0]
                before, due, speed = time.monotonic(), self._next, self.speed
                if self._wait_s > 0 and self._changed.wait(self._wait_s / speed):
                    if due == self._next:
                        self._wait_s -= (time.monotonic() - before) * speed
                    continue
                self._queue.put(self._take())
            self._wake()

    def _take(self) -> Event:
        event = self._timeline[self._next][1]
        self._next += 1
        self._wait_s = 0.0 if self.ended else self._timeline[self._next][0]
        return event

    def _put(self, event: Event) -> None:
        self._queue.put(event)
        self._wake()
