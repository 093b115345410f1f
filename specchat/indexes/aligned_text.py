"""A text that another one is expected to follow, and how far the other one has followed it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_RUN = 16
"""The longest run of agreeing tokens that is counted; a longer one tells no more."""

_WINDOW = 16
"""So far behind the last agreement a single token is looked for; anywhere else it takes two in a row."""


@dataclass(frozen=True)
class Alignment:
    """Where the other text stands.

    Args:
        place: index of the reference's token that should come next.
        run: how many tokens in a row agreed before it.
        lost: the last token was not the expected one, and it is not known where to go on.
    """

    place: int = 0
    run: int = 0
    lost: bool = False


class AlignedText:
    """Finds in a reference what should follow: the token after the last agreement, also behind a small change.

    After a token that was not expected, the alignment goes on where the last two tokens stand in the reference, nearest
    to where it was; or, where only the last one is found, a little behind that place.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self._after: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for place, pair in enumerate(zip(self.tokens, self.tokens[1:], strict=False), 2):
            self._after[pair].append(place)

    def next_token(self, at: Alignment) -> int | None:
        """The token that is expected next; None where the text is lost or at its end."""
        return None if at.lost or at.place >= len(self.tokens) else self.tokens[at.place]

    def advance(self, at: Alignment, before: int | None, token: int) -> Alignment:
        """Where the other text stands one token later; `before` is the token before that, if there is one."""
        if self.next_token(at) == token:
            return Alignment(at.place + 1, min(LONGEST_RUN, at.run + 1))
        places = self._after.get((before, token), ()) if before is not None else ()
        if places:
            return Alignment(min(places, key=lambda place: (abs(place - at.place), place)), 2)
        window = self.tokens[at.place : at.place + _WINDOW]
        if token in window:
            return Alignment(at.place + window.index(token) + 1, 1)
        return Alignment(at.place, 0, lost=True)
