"""Functions that a reply may call: how calls and results are written for models, and calls read from a reply.

Calls are read in the form of Hermes and Qwen models, `<tool_call>` around JSON, and, where a whole reply is one, as
bare JSON with `name` and `arguments` (or, as Llama 3 writes it, `parameters`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specchat.engine.protocol.commands import ReplyConstraint

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_LAID_OUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class Tools:
    """The functions of one request.

    Args:
        told: all of them, as JSON for the engine.
        constraint: where one must be called, a call with arguments that fit.
        single: what comes after the first call is left out.
    """

    names: tuple[str, ...]
    told: str
    constraint: ReplyConstraint | None = None
    single: bool = False


def call_text(name: str, arguments: object) -> str:
    """A call as models write it."""
    return f"{_OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{_CLOSE}"


def result_text(content: str) -> str:
    """A result as models read it."""
    return f"<tool_response>\n{content}\n</tool_response>"


def required_call(tools: Mapping[str, dict[str, Any]], chosen: Sequence[str]) -> ReplyConstraint:
    """One call of one of these tools, by their parameters' schemas, as a grammar."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": tools[name]},
            "required": ["name", "arguments"],
            "additionalProperties": False,
            "x-guidance": _LAID_OUT,
        }
        for name in chosen
    ]
    names = " | ".join(f"call_{number}" for number in range(len(calls)))
    rules = "\n".join(f"call_{number}: %json {json.dumps(call)}" for number, call in enumerate(calls))
    return ReplyConstraint("grammar", f'start: "{_OPEN}\\n" ({names}) "\\n{_CLOSE}"\n{rules}')


@dataclass(frozen=True)
class Call:
    """One call of a reply; `arguments` is JSON."""

    index: int
    id: str
    name: str
    arguments: str


class CallReader:
    """Tells the calls of a reply from its text, while it comes. What only looks like a call stays text.

    Attributes:
        count: calls so far.
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
        if not self._begun and self._held.lstrip()[:1] in ("", "{"):
            return found  # the whole reply may be a call
        while True:
            before, tag, rest = self._held.partition(_OPEN)
            if not tag:
                keep = _beginning_of(_OPEN, before)
                self._held = before[len(before) - keep :]
                self._give(found, before[: len(before) - keep])
                return found
            inside, end, after = rest.partition(_CLOSE)
            self._give(found, before)
            self._held = tag + rest
            if not end:
                return found
            call = self._call(inside)
            self._give(found, tag + inside + end if call is None else call)
            self._held = after

    def finish(self) -> list[str | Call]:
        """The rest, when the reply is over."""
        found: list[str | Call] = []
        call = self._call(self._held.removeprefix(_OPEN)) if self._held.lstrip()[:1] in ("{", "<") else None
        self._give(found, self._held if call is None else call)
        self._held = ""
        return found

    def _give(self, found: list[str | Call], piece: str | Call) -> None:
        """Give a piece on; white space around calls says nothing."""
        if isinstance(piece, str) and not piece.strip() and (self.count or not self._begun):
            return
        if self._single and self.count - isinstance(piece, Call):
            return
        self._begun = True
        found.append(piece)

    def _call(self, text: str) -> Call | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters"))
        if not isinstance(arguments, dict):
            return None
        self.count += 1
        written = json.dumps(arguments, ensure_ascii=False)
        return Call(self.count - 1, f"call_{secrets.token_hex(12)}", str(value["name"]), written)


def _beginning_of(tag: str, text: str) -> int:
    """How many last characters of the text begin the tag."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
