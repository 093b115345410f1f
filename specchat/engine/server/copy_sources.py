"""The message of the chat that a copied token was copied from, and the words before it there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from specchat.core.tree import STORED
from specchat.decoding.vocabulary import Vocabulary
from specchat.engine.protocol.commands import Message
from specchat.engine.protocol.round_parts import Part, Source
from specchat.models.decoder.cache_rows import common_prefix

StoredTexts = Callable[[int, int], tuple[str, int, Sequence[int]] | None]
"""`Drafter.stored_text`."""

_TOKENS_BEFORE = 8
_MOST_CHARACTERS = 32

_PARTS: dict[str, Part] = {"system": "system", "user": "user", "assistant": "assistant"}


class CopySources:
    """Describes places in the text of one reply.

    A message's tokens are those of the prompt that change where its content does. So any chat template may do with
    contents what it likes. Messages are looked at only when something was copied, a few for every place.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        messages: Sequence[Message],
        prompt: Sequence[int],
        stored: StoredTexts = lambda source, most: None,
    ) -> None:
        self._vocabulary = vocabulary
        self._messages = [{"role": message.role, "content": message.content} for message in messages]
        self._prompt = prompt
        self._stored = stored
        self._found: dict[int, range] = {}  # by message

    def describe(self, history: Sequence[int], place: int) -> Source | None:
        """The source of a copy of token `place` of the text, which begins with the prompt, or of a datastore's token;
        None where that one is no longer in use."""
        if place >= STORED:
            found = self._stored(place, _TOKENS_BEFORE)
            return found and Source(
                found[1], "datastore", before=self._words(found[2], 0, len(found[2])), file=found[0]
            )
        if place >= len(self._prompt):
            return Source(place, "reply", before=self._words(history, len(self._prompt), place))
        at = bisect_right(range(len(self._messages)), place, key=lambda at: self._tokens_of(at).start) - 1
        if at < 0 or place not in self._tokens_of(at):
            return Source(place, "prompt", before=self._words(history, 0, place))
        role = self._messages[at]["role"]
        number = sum(message["role"] == role for message in self._messages[: at + 1])
        return Source(place, _PARTS[role], number, self._words(history, self._tokens_of(at).start, place))

    def _tokens_of(self, at: int) -> range:
        """The tokens of the prompt that message `at` became."""
        if at in self._found:
            return self._found[at]
        content = self._messages[at]["content"].strip()
        other = next(letter for letter in "xyz" if letter not in (content[:1], content[-1:]))
        changed = [*self._messages]
        changed[at] = {**changed[at], "content": other}
        tokens = self._vocabulary.encode_chat(changed)
        first = common_prefix(self._prompt, tokens)
        behind = common_prefix(self._prompt[first:][::-1], tokens[first:][::-1])
        found = self._found[at] = range(first, len(self._prompt) - behind)
        return found

    def _words(self, history: Sequence[int], first: int, place: int) -> str:
        """The words before a token, from token `first` on, in one line."""
        tokens = history[max(first, place - _TOKENS_BEFORE) : place]
        text = b"".join(self._vocabulary.token_bytes(token) for token in tokens).decode("utf-8", "ignore")
        return " ".join(text.split())[-_MOST_CHARACTERS:]
