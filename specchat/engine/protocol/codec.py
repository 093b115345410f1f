"""Messages to lines and back. Everything decoded here has been checked, so readers need not check again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, TypeVar

import msgspec

from specchat.config.file_reading import UNREADABLE
from specchat.engine.protocol.bounds import LONGEST_LINE_BYTES
from specchat.engine.protocol.checks import Order, check
from specchat.engine.protocol.commands import Command
from specchat.engine.protocol.events import PROTOCOL, Event
from specchat.engine.protocol.text import one_line
from specchat.errors import cut, short

_T = TypeVar("_T", bound=Command | Event)

_encoder = msgspec.json.Encoder()
_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(message: Command | Event) -> bytes:
    """One line, newline included; half of a surrogate pair, which can be pasted, becomes a replacement character."""
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(_whole(msgspec.to_builtins(message))) + b"\n"


def decode_command(line: bytes) -> Command:
    """A command from its line; raises msgspec.DecodeError where the line is not a command."""
    return _decoded(_commands, line)


def decode_event(line: bytes) -> Event:
    """An event from its line; raises msgspec.DecodeError where the line is not an event, or contradicts itself."""
    return _decoded(_events, line)


class EventReader:
    """The events of one stream, line by line; each must also be possible after those before it."""

    def __init__(self) -> None:
        self._order = Order()

    def read(self, line: bytes) -> Event:
        """The next event; raises msgspec.DecodeError where the line is not an event."""
        event = decode_event(line)
        self._order.follow(event)
        return event


class _Greeting(msgspec.Struct):
    """What is read of an engine's first line before anything else: later versions may change all but this."""

    type: str
    protocol: int | None = None


def wrong_greeting(line: bytes) -> str:
    """Why an engine whose first line this is cannot be understood; empty where it can, and where it is not an event."""
    try:
        first = msgspec.json.decode(line[:LONGEST_LINE_BYTES], type=_Greeting)
    except UNREADABLE:
        return ""
    if first.type != "hello":
        return f"the engine did not begin with 'hello', but with {short(first.type)}"
    if first.protocol != PROTOCOL:
        return f"the engine speaks version {short(first.protocol)} of the protocol, this specchat version {PROTOCOL}"
    return ""


def lines_of(stream: IO[bytes]) -> Iterator[bytes]:
    """The stream's lines. Of one that is too long only as much comes as it takes to be refused."""
    while line := stream.readline(LONGEST_LINE_BYTES + 1):
        yield line
        while len(line) > LONGEST_LINE_BYTES and not line.endswith(b"\n"):
            line = stream.readline(LONGEST_LINE_BYTES + 1)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_whole(key): _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list | tuple) else value


def _decoded(decoder: msgspec.json.Decoder[_T], line: bytes) -> _T:
    if len(line) > LONGEST_LINE_BYTES:
        raise msgspec.DecodeError(f"the line is longer than {LONGEST_LINE_BYTES:,} bytes")
    try:
        message = decoder.decode(line)
        check(message)
    except UNREADABLE as error:
        raise msgspec.DecodeError(cut(one_line(str(error)))) from None
    return message
