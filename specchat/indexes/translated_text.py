"""A growing text of the target's tokens as a draft model's tokens; only its last word is encoded again."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.indexes.token_translation import TokenTranslation

_FEW = 64
"""Tokens. What is longer, a prompt, is encoded at once; in shorter texts words return."""


class TranslatedText:
    """The draft tokens of a text, encoded up to the last word, which may still grow into other tokens."""

    def __init__(self, translation: TokenTranslation) -> None:
        self._translation = translation
        self._text: list[int] = []
        self._settled: list[int] = []  # the draft tokens of its beginning
        self._first = 0  # the first of the text's tokens that are not settled

    def of(self, text: Sequence[int]) -> list[int] | None:
        """The draft tokens of this text; None where there are none or where it ends within a character."""
        if self._translation.same:
            return list(text)
        if list(text[: len(self._text)]) != self._text:
            self._settled, self._first = [], 0
        self._text = list(text)
        self._settle()
        rest = self._translation.draft_tokens(self._text[self._first :])
        return None if rest is None else [*self._settled, *rest] or None

    def _settle(self) -> None:
        """Encode for good what lies before the last place at which the text can be cut; a few tokens word by word."""
        places = range(self._first + 1, len(self._text))
        cuts = [place for place in places if self._translation.splits_before(self._text[place])]
        for place in cuts if len(places) <= _FEW else cuts[-1:]:
            tokens = self._translation.draft_tokens(self._text[self._first : place])
            if tokens is not None:
                self._settled += tokens
                self._first = place
