"""What a reply has emitted: tokens with their text and origin, up to the token at which it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.decoding.detokenize import Detokenizer
from specchat.decoding.stopping import Stop, StopStrings
from specchat.decoding.vocabulary import Vocabulary


@dataclass(frozen=True)
class Limits:
    """Where a reply must end at the latest.

    Args:
        max_tokens: tokens of reply.
        room: tokens the context still takes after the prompt.
        stop: strings that end the reply; they are not part of it.
    """

    max_tokens: int
    room: int
    stop: tuple[str, ...] = ()


class Emission:
    """Takes emitted tokens one by one and knows when to stop. `begun`: the reply has text already."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits, *, begun: bool = False) -> None:
        self.tokens: list[int] = []
        self.ended: Stop | None = None
        self.limits = limits
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary, begun=begun)
        self._stops = StopStrings(limits.stop)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply, if one did."""
        return self._stops.found

    def limit(self, limits: Limits) -> None:
        """Change the limits of a running reply. A shorter limit ends it at the next token."""
        self.limits = limits
        self._stops.strings = limits.stop

    def take(self, emitted: Sequence[int]) -> list[str]:
        """Take tokens until the reply ends; the text that became readable with each token taken."""
        texts: list[str] = []
        for token in emitted:
            if self.ended is not None:
                break
            self.tokens.append(token)
            texts.append(self._stops.add(self._detokenizer.add(token)))
            self.ended = self._end_at(token)
        return texts

    def finish(self) -> str:
        """Text that was held back and is due now that the reply is over."""
        if self._stops.found is not None:
            return ""
        rest = self._stops.add(self._detokenizer.finish())
        return rest + self._stops.finish()

    def _end_at(self, token: int) -> Stop | None:
        if token in self._vocabulary.eos_ids:
            return Stop.END
        if self._stops.found is not None:
            return Stop.STOP
        if len(self.tokens) >= self.limits.max_tokens:
            return Stop.LENGTH
        return Stop.CONTEXT if len(self.tokens) >= self.limits.room else None
