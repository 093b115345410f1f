"""Functions that a reply may call: what holds a reply to their schemas, and calls read from a reply.

Calls are read in the forms that models write: `<tool_call>` around JSON (Hermes, Qwen), `<function=name>` before JSON
(Llama), `[TOOL_CALLS]` before a list (Mistral), and, where a whole reply is made of calls, JSON objects with `name` and
`arguments` or `parameters`, one by one, in a list, or in a block of code (Llama, Mistral, Gemma).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specchat.engine.protocol.commands import ReplyConstraint

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_DEFINITIONS = ("$defs", "definitions")
"""What references in a schema point to, from the root of the whole."""

_LAID_OUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class Tools:
    """The functions of one request.

    Args:
        told: all of them, as JSON for the engine.
        constraint: calls with arguments that fit: one alone where one must be called.
        single: what comes after the first call is left out.
    """

    names: tuple[str, ...]
    told: str
    constraint: ReplyConstraint | None = None
    single: bool = False


def required_call(tools: Mapping[str, dict[str, Any]], chosen: Sequence[str]) -> ReplyConstraint:
    """One call of one of these tools, by their parameters' schemas, as a grammar."""
    return ReplyConstraint("grammar", f'start: "{_OPEN}\\n" {_calls(tools, chosen)}')


def free_calls(tools: Mapping[str, dict[str, Any]], *, single: bool) -> ReplyConstraint:
    """Any text with calls of these tools in it, whose arguments fit the schemas: from the mark that opens a call on."""
    start = "start: call | TEXT" if single else "start: call* TEXT"
    marked = f'TEXT: /(.|\\n)*/\ncall_begins[lazy]: TEXT "{_OPEN}"\ncall: call_begins "\\n" {_calls(tools, [*tools])}'
    return ReplyConstraint("calls", f"{start}\n{marked}")


def _calls(tools: Mapping[str, dict[str, Any]], chosen: Sequence[str]) -> str:
    """The end of a rule, a call behind its mark, and the rules that it needs."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": _without_others(tools[name])},
            "required": ["name", "arguments"],
            "additionalProperties": False,
            "x-guidance": _LAID_OUT,
            **{key: tools[name][key] for key in _DEFINITIONS if key in tools[name]},
        }
        for name in chosen
    ]
    names = " | ".join(f"call_{number}" for number in range(len(calls)))
    rules = "\n".join(f"call_{number}: %json {json.dumps(call)}" for number, call in enumerate(calls))
    return f'({names}) "\\n{_CLOSE}"\n{rules}'


def _without_others(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of parameters without those that it does not name, unless it speaks of them."""
    return {"additionalProperties": False, **schema} if "properties" in schema else schema


@dataclass(frozen=True)
class Call:
    """One call of a reply; `arguments` is JSON."""

    index: int
    id: str
    name: str
    arguments: str


_MARKS = {_OPEN: _CLOSE, "<function=": "</function>", "[TOOL_CALLS]": ""}
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

    Attributes:
        count: calls so far.

    Args:
        single: give out nothing after the first call.
    """

    def __init__(self, names: Collection[str], *, single: bool = False) -> None:
        self.count = 0
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
            mark, at = _first_mark(self._held)
            if not mark:
                keep = max(_beginning_of(one, self._held) for one in _MARKS)
                cut = len(self._held) - keep
                self._give(found, self._held[:cut])
                self._held = self._held[cut:]
                return found
            self._give(found, self._held[:at])
            self._held = self._held[at:]
            inside, closed, after = self._held[len(mark) :].partition(_MARKS[mark] or "\0")
            if not closed or not _MARKS[mark]:
                return found
            self._give_calls(found, mark + inside + closed, _named(inside) if mark == "<function=" else inside)
            self._held = after

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
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters"))
        if not isinstance(arguments, dict):
            return None
        return Call(0, f"call_{secrets.token_hex(12)}", str(value["name"]), json.dumps(arguments, ensure_ascii=False))


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


def _values(text: str) -> Iterator[object]:
    """The JSON values in a text, one after the other or in a list; none where there is anything else."""
    text = text.strip()
    found: list[object] = []
    decoder = json.JSONDecoder()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            return
        found += value if isinstance(value, list) else [value]
        text = text[end:].lstrip().removeprefix(";").lstrip()
    yield from found


def _first_mark(text: str) -> tuple[str, int]:
    """The first mark in a text and where it stands; empty where there is none."""
    found = [(at, mark) for mark in _MARKS if (at := text.find(mark)) >= 0]
    return (min(found)[1], min(found)[0]) if found else ("", -1)


def _beginning_of(tag: str, text: str) -> int:
    """How many last characters of the text begin the tag."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
