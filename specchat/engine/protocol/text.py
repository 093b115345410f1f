"""Makes text from outside safe to show: control codes have no effect, and no character is invisible."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, escape among them; tab and newline stay
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that reorder what follows
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # separators some programs take for line ends
    "\ud800-\udfff]"  # half of a pair, which no terminal can be sent
)

_OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[[0-9]*[AGK]|\x1b\[\?25[lh]|\r(?!\n)|\r\n")
"""Colours, and what draws a line of progress anew: all that Rich and we send from the command line."""


def visible(text: str) -> str:
    """The text with every control character as a symbol one can see: `␛[31m` instead of red.

    Tabs and newlines stay. Line by line or in any other pieces, the result is the same.
    """
    return _UNSEEN.sub(_symbol, text)


def between(runs: Sequence[tuple[str, str]], begin: int, end: int) -> list[tuple[str, str]]:
    """The part of a text, given in pieces with what each is, from one character to another."""
    at, found = 0, []
    for text, what in runs:
        if part := text[max(0, begin - at) : max(0, end - at)]:
            found.append((part, what))
        at += len(text)
    return found


def one_line(text: str) -> str:
    """The text as `visible` shows it, in one line: for errors, titles, and whatever has one row."""
    return visible(text.replace("\n", "⏎").replace("\t", " "))


def steers(text: str) -> bool:
    """Whether the text holds anything that `visible` would show as a symbol."""
    return _UNSEEN.search(text) is not None


def without_steering(text: str) -> str:
    """The text without what `visible` shows as symbols; as wide as a terminal would draw it."""
    return _UNSEEN.sub(lambda match: "?" if "\ud800" <= match.group() <= "\udfff" else "", text)


def safe_on_terminal(text: str) -> str:
    """A program's output with its colours and progress lines; everything else is as `visible` shows it."""
    at, parts = 0, []
    for own in _OWN.finditer(text):
        parts += [visible(text[at : own.start()]), own.group()]
        at = own.end()
    return "".join([*parts, visible(text[at:])])


def safe_in_json(text: str) -> str:
    """JSON with every character that could steer a terminal written as `\\u009b`; it reads as the same values."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _symbol(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"⟨{code:x}⟩"
