"""Messages to lines and back, and the checks of what comes in, so that readers need not check again.

Beyond the types of fields, the parts of a message must fit together, and a message those before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import IO, Any, TypeVar

import msgspec
from msgspec import ValidationError

from specchat.config.file_reading import UNREADABLE
from specchat.engine.protocol.bounds import LONGEST_LINE_BYTES
from specchat.engine.protocol.commands import Change, Command, Compare, Count, Generate, Load, WhatIf
from specchat.engine.protocol.events import (
    PROTOCOL,
    Changed,
    Died,
    Event,
    Failed,
    Finished,
    Header,
    Hello,
    Learnt,
    OptionInfo,
    Prefilled,
    Ready,
    Redoing,
    RoundDone,
    Started,
    Stats,
    Totals,
    WouldBe,
)
from specchat.engine.protocol.round_parts import Tree, Verdict
from specchat.engine.protocol.text import one_line
from specchat.errors import cut, short
from specchat.settings import MOST_TOGETHER, OPTIONS

_T = TypeVar("_T", bound=Command | Event)

_encoder = msgspec.json.Encoder()
_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_tools: msgspec.json.Decoder[list[dict[str, Any]]] = msgspec.json.Decoder(list[dict[str, Any]])


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


class _Greeting(msgspec.Struct):
    """The part of an engine's first line that is read before anything else; later versions may change all but this."""

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


_NEEDED = ("pair", "drafter", "policy", "rule", "controller", "temperature", "seed")
"""Settings that readers of events look up without checking that they are there."""

_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
_WIDEST = 2**63


def check(message: Command | Event) -> None:
    """Refuse a message whose parts contradict each other."""
    match message:
        case Load() | Change():
            _wishes(message.settings)
        case Generate():
            _wishes(message.apart or {})
            _wishes(message.own or {})
            _demand(message.own is None or message.apart is None, "a reply is written apart or with others, not both")
            _demand(message.own is None or message.beside is None, "two replies by turns are not written with others")
            _wishes(message.beside.apart if message.beside else {})
            _demand(message.beside is None or message.beside.id != message.id, "two replies have the same id")
            _demand(message.text is None or not message.messages, "a reply answers messages or goes on with a text")
            begun = message.begun or message.begun_tokens
            _demand(message.text is None or not begun, "only a reply to messages can have begun")
            _demand(not (message.begun and message.begun_tokens), "a reply has begun with texts or with tokens")
            _tools.decode(message.tools or "[]")
        case Count():
            _tools.decode(message.tools or "[]")
        case Compare():
            _wishes(message.apart or {})
        case WhatIf():
            _wishes(message.own)
            _wishes(message.changes)
            _demand(message.at is None or message.at < len(message.tokens), "a round begins behind the reply's end")
        case Hello():
            for option in [*message.settings, *(option for method in message.methods for option in method.options)]:
                _option(option)
        case Ready() | Changed() | Started():
            _settings(message.settings)
        case RoundDone():
            _tree(message.tree)
            _verdict(message.verdict, message.tree)
            _pieces(message)
        case Finished() | Totals():
            _stats(message.stats)
        case Redoing():
            _demand(message.done <= message.total, f"{message.done} of {message.total} tokens are done")
        case WouldBe():
            both = [one for one in (message.own, message.other) if one is not None]
            _demand(message.stopped or len(both) == 2, "a reply that was done once more has rounds of both kinds")
            for one in both:
                _demand(0 < one.rounds <= one.tokens, f"{one.rounds} rounds have {one.tokens} tokens")
            if message.round is not None:
                check(message.round)
        case Learnt():
            _demand(len(message.before) == len(message.now), "two networks are compared at the same depths")
            _demand(max([0, *message.before, *message.now]) <= message.chains, "more chains are right than there are")
            for reply in message.judged:
                changed = reply.became_right + reply.became_wrong
                _demand(changed <= reply.chains, "more guesses changed than there are places")
        case Died():
            raise ValidationError("a died event is made on the near side, never sent")


class EventReader:
    """The events of one stream. A reply's come between its beginning and its end, round after round.

    Several replies may be written at once; where one more begins than can be, the oldest is over.
    """

    def __init__(self) -> None:
        self._first = True
        self._written: dict[int, tuple[int, float]] = {}  # replies being written: rounds so far, and the time

    def read(self, line: bytes) -> Event:
        """The next event; raises msgspec.DecodeError where the line is none, or one that cannot come here."""
        event = decode_event(line)
        match event:
            case Header() if not self._first:
                raise ValidationError("a header may only be the first line")
            case Started():
                self._written.pop(event.id, None)
                self._written = {**dict([*self._written.items()][1 - MOST_TOGETHER :]), event.id: (0, 0.0)}
            case Failed() if event.id is not None:
                self._written.pop(event.id, None)
            case Prefilled():
                self._written[event.id] = self._rounds(event), event.at_s
            case RoundDone():
                due = self._rounds(event)
                _demand(event.index == due, f"round {event.index} comes where {due} is due")
                self._written[event.id] = due + 1, event.at_s
            case Finished():
                self._rounds(event)
                del self._written[event.id]
        self._first = False
        return event

    def _rounds(self, event: Prefilled | RoundDone | Finished) -> int:
        """How many rounds the reply has so far, which must be one that is being written."""
        _demand(event.id in self._written, f"reply {event.id} is not being written")
        rounds, at_s = self._written[event.id]
        _demand(event.at_s >= at_s, f"the clock of reply {event.id} runs backwards")
        return rounds


def _demand(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValidationError(sentence)


def _tree(tree: Tree) -> None:
    count = len(tree.tokens)
    for name, length in (
        ("parents", len(tree.parents)), ("texts", len(tree.texts)), ("target_logprob", len(tree.target_logprob))
    ):  # fmt: skip
        _demand(length == count, f"a tree of {count} nodes has {length} {name}")
    _demand(tree.parents[0] == -1, f"the root has a parent, {tree.parents[0]}")
    for node, parent in enumerate(tree.parents[1:], 1):
        _demand(0 <= parent < node, f"node {node} has the parent {parent}; parents come before their children")
    siblings = set(zip(tree.parents, tree.tokens, strict=True))
    _demand(len(siblings) == count, "two children of one node have the same token")
    _demand(len(tree.draws) <= 64 * count, f"a tree of {count} nodes has {len(tree.draws)} draws")
    for draw in tree.draws:
        _demand(0 < draw.child < count, f"a draw names node {draw.child} of {count}")
    for guess in tree.forbidden:
        _demand(guess.parent < count, f"a forbidden guess follows node {guess.parent} of {count}")


def _verdict(verdict: Verdict, tree: Tree) -> None:
    count = len(tree.tokens)
    _demand(len(verdict.reasons) == count, f"a tree of {count} nodes has {len(verdict.reasons)} reasons")
    before = 0
    for node in verdict.path:
        _demand(node < count and tree.parents[node] == before, f"the path goes from node {before} to {node}")
        before = node


def _pieces(round: RoundDone) -> None:
    verdict = round.verdict
    origins = ["drafted"] * len(verdict.path) + ["target"] * (verdict.bonus is not None)
    told = [piece.origin for piece in round.pieces]
    _demand(told == origins, f"{len(verdict.path)} accepted tokens and the bonus make other pieces than {len(told)}")
    for piece in round.pieces:
        if piece.source is not None:
            _demand(piece.origin == "drafted", "a token of the target's own has a source")
            at, count = piece.source.token, round.context_tokens
            _demand(
                at < count or piece.source.part == "datastore", f"a token is a copy of token {at} in a text of {count}"
            )
        if piece.lens is not None:
            layers = [top.layer for top in piece.lens.tops]
            ordered = all(one < other for one, other in pairwise(layers))
            _demand(
                ordered and layers[0] == 1 and layers[-1] <= piece.lens.layers,
                f"layers {layers[:4]}… are not a way from the first of {piece.lens.layers} on",
            )


def _stats(stats: Stats) -> None:
    _demand(stats.accepted <= stats.drafted, f"{stats.accepted} tokens were accepted of {stats.drafted} drafted")
    _demand(stats.acceptance_rate <= 1, f"the acceptance rate is {stats.acceptance_rate:g}")
    low, value, high = stats.speedup_low, stats.speedup, stats.speedup_high
    if low is not None and value is not None and high is not None:
        _demand(low <= value <= high, f"the speed-up {value:g} is not between {low:g} and {high:g}")


def _option(option: OptionInfo) -> None:
    if option.default is not None:
        _value(option.default, option.kind, option.name)
    low, high = option.minimum, option.maximum
    _demand(low is None or high is None or low <= high, f"option {option.name} has no value between {low} and {high}")


def _settings(settings: Mapping[str, Any]) -> None:
    """Settings in force: all that readers need are there, each of its kind."""
    for name in _NEEDED:
        _demand(name in settings, f"the settings lack {name!r}")
    _values(settings)
    for name, value in settings.items():
        if name in OPTIONS:
            _value(value, OPTIONS[name].kind, name)


def _wishes(settings: Mapping[str, Any]) -> None:
    """Settings that are asked for; whether numbers are in range, and may be written as text, their owner decides."""
    _values(settings)
    for name, value in settings.items():
        if name in OPTIONS and OPTIONS[name].kind == "str":
            _value(value, "str", name)


def _values(settings: Mapping[str, Any]) -> None:
    """Plain values by name, a list of stop strings, and a table of methods' options; nothing deeper."""
    for name, value in settings.items():
        match name, value:
            case "stop", list():
                _demand(all(isinstance(text, str) for text in value), "stop holds a value that is not a text")
            case "method_options", dict():
                for option, chosen in value.items():
                    _plain_value(chosen, f"method_options.{option}")
            case _:
                _plain_value(value, name)


def _plain_value(value: Any, name: str) -> None:
    _demand(value is None or isinstance(value, bool | int | float | str), f"{name} is a {type(value).__name__}")
    if isinstance(value, int | float):
        _demand(math.isfinite(value) and abs(value) <= _WIDEST, f"{name} is out of every range")


def _value(value: Any, kind: str, name: str) -> None:
    right = isinstance(value, _KINDS[kind]) and (kind == "bool" or not isinstance(value, bool))
    _demand(right, f"{name} is not of kind {kind}: {value!r:.40}")
    _plain_value(value, name)
