"""Make text from a model safe to show: nothing in it may steer a terminal, nothing in it may hide."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, escape among them; tab and newline stay
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that reorder what follows
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # separators some programs take for line ends
    "\ud800-\udfff]"  # half of a pair, which no terminal can be sent
)


def visible(text: str) -> str:
    """The text with every control character as a symbol one can see: `␛[31m` instead of red.

    Tabs and newlines stay. Line by line or in any other pieces, the result is the same.
    """
    return _UNSEEN.sub(_symbol, text)


def _symbol(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"⟨{code:x}⟩"
