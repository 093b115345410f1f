"""Whether a text has begun to repeat itself: the same words, or the same lines with other numbers in them."""

from __future__ import annotations

import re

_LOOKED_AT = 2_400
"""Characters at the end of a text that are looked at."""

_LEAST_CHARACTERS, _LEAST_TIMES = 240, 3
"""What repeats takes so many characters at least, and stands there so many times."""

_MARK = 16
_NUMBER = re.compile(r"\d+")


def repeats_itself(text: str) -> bool:
    """Whether the end of the text is one piece several times over."""
    end = _NUMBER.sub("0", text[-_LOOKED_AT:])
    mark, at = end[-_MARK:], len(end) - _MARK
    while (before := end.rfind(mark, 0, at + _MARK - 1)) >= 0:
        period = len(end) - _MARK - before
        times = max(_LEAST_TIMES, -(-_LEAST_CHARACTERS // period))
        if times * period > len(end):
            return False
        piece = end[-period:]
        if end.endswith(piece * times):
            return bool(piece.strip())
        at = before
    return False
