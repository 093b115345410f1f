"""Functions that a reply may call, as a request names them, and calls read from a reply.

Calls are read in every form of `decoding/chat_tools.py`, whichever the model was told of: those with a mark wherever
they stand, the others where a whole reply is made of calls, one by one, in a list, or in a block of code.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from specchat.decoding.chat_tools import FORMS
from specchat.decoding.emission import begun_at_end
from specchat.engine.protocol.commands import ReplyConstraint


@dataclass(frozen=True)
class Tools:
    """The functions of one request.

    Args:
        told: all of them, as JSON for the engine.
        constraint: what holds calls to the parameters' schemas; where it is `single`, nothing follows the first call.
    """

    names: tuple[str, ...]
    told: str
    constraint: ReplyConstraint


@dataclass(frozen=True)
class Call:
    """One call of a reply; `arguments` is JSON."""

    index: int
    id: str
    name: str
    arguments: str


_MARKS = {form.mark: form.closing.strip() if form.each else "" for form in reversed(FORMS) if form.mark}
"""What opens a call in the middle of a reply, and what closes it; nothing closes what goes on to the reply's end."""

_FENCE = "`" * 3
_WHOLE = tuple(
    before + bracket
    for before in ("", "<|python_tag|>", _FENCE, *(_FENCE + word for word in ("json", "tool_code", "tool_call")))
    for bracket in ("{", "[{")
)
"""How a reply begins that is made of calls alone, without its white space."""

_LONGEST_BEGINNING = 64


class CallReader:
    """Tells the calls of a reply from its text, while it comes. What only looks like a call stays text.

    Args:
        single: give out nothing after the first call.
    """

    def __init__(self, names: Collection[str], *, single: bool = False) -> None:
        self.count = 0  # calls so far
        self._single = single
        self._names = frozenset(names)
        self._held = ""
        self._begun = False  # whether some text or call was given already

    def add(self, text: str) -> list[str | Call]:
        """What is certain after this further text."""
        self._held += text
        found: list[str | Call] = []
        if not self._begun and _begins_whole(self._held) is not False:
            return found
        while True:
            standing = ((place, mark) for mark in _MARKS if (place := self._held.find(mark)) >= 0)
            at, mark = min(standing, default=(-1, ""))
            if not mark:
                keep = max(begun_at_end(self._held, one) for one in _MARKS)
                cut = len(self._held) - keep
                self._give(found, self._held[:cut])
                self._held = self._held[cut:]
                return found
            self._give(found, self._held[:at])
            self._held = self._held[at:]
            closing = _MARKS[mark]
            end = _closed(self._held[len(mark) :], closing) if closing else -1
            if end < 0:
                return found
            inside = self._held[len(mark) :][:end]
            self._give_calls(found, mark + inside + closing, _named(inside) if mark == "<function=" else inside)
            self._held = self._held[len(mark) + end + len(closing) :]

    def finish(self) -> list[str | Call]:
        """The rest, when the reply is over."""
        found: list[str | Call] = []
        held, self._held = self._held, ""
        mark = next((mark for mark in _MARKS if held.startswith(mark)), "")
        if mark:
            inside = held[len(mark) :]
            self._give_calls(found, held, _named(inside) if mark == "<function=" else inside)
        elif _begins_whole(held):
            at = next(place for place, letter in enumerate(held) if letter in "{[")
            self._give_calls(found, held, held[at:].rstrip().removesuffix(_FENCE))
        else:
            self._give(found, held)
        return found

    def _give(self, found: list[str | Call], piece: str | Call) -> None:
        """Give a piece on; white space around calls says nothing."""
        if isinstance(piece, str) and not piece.strip() and (self.count or not self._begun):
            return
        if self._single and self.count - isinstance(piece, Call):
            return
        self._begun = True
        found.append(piece)

    def _give_calls(self, found: list[str | Call], text: str, inside: str) -> None:
        """Give calls on, or, where there are none inside, the text that they are in."""
        values = [*_values(inside)]
        calls = [call for value in values if (call := self._call(value)) is not None]
        if not calls or len(calls) < len(values):
            self._give(found, text)
            return
        for call in calls:
            self.count += 1
            self._give(found, replace(call, index=self.count - 1))

    def _call(self, value: object) -> Call | None:
        if not isinstance(value, dict):
            return None
        name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
        if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
            return None
        try:
            said = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except ValueError:  # NaN or a number beyond the largest: Python reads them, but they are no JSON
            return None
        return Call(0, f"call_{secrets.token_hex(12)}", name, said)


def _begins_whole(text: str) -> bool | None:
    """Whether a reply is made of calls alone, as its beginning looks; None while that cannot be told."""
    said = "".join(text[:_LONGEST_BEGINNING].split())
    if said.startswith(_WHOLE):
        return True
    return None if any(one.startswith(said) for one in _WHOLE) else False


def _named(inside: str) -> str:
    """`name>{…}` as the JSON of a call."""
    name, _, arguments = inside.partition(">")
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'


_NAMED = re.compile(r"(?:\[TOOL_CALLS\])?\s*([\w.:/-]+)(?:\[CALL_ID\]\w*)?\[ARGS\]\s*")
"""A name before its arguments, as Mistral's models write calls since 2025."""


def _values(text: str) -> Iterator[object]:
    """The JSON values in a text, one after the other or in a list; none where there is anything else."""
    text = text.strip()
    found: list[object] = []
    decoder = json.JSONDecoder()
    while text:
        named = _NAMED.match(text)
        text = text[named.end() :] if named else text
        try:
            value, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            return
        found += [{"name": named[1], "arguments": value}] if named else value if isinstance(value, list) else [value]
        text = text[end:].lstrip().removeprefix(";").lstrip()
    yield from found


def _closed(inside: str, closing: str) -> int:
    """Where calls are closed; -1 where they are not. What stands in a JSON string closes nothing."""
    end = inside.find(closing)
    while end >= 0 and '"' in _STRING.sub("", inside[:end]):
        end = inside.find(closing, end + 1)
    return end


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
