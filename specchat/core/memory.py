"""How much memory a pair may take, and how much a round takes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specchat.core.request import CHUNK_TOKENS
from specchat.core.seams import Model

LEAST_TOKENS = 512
"""The shortest useful context."""

_LAWS_BYTES = 40
"""What drawing a token works in, for every token of the vocabulary: five vectors in float64."""


@dataclass(frozen=True)
class MemoryLimit:
    """The most memory that may be held, and what is held.

    Args:
        bytes: the limit.
        base_bytes: what was held when the models were there and nothing was read.
        peak: the most that was held since then, as it was measured.
    """

    bytes: int
    base_bytes: int
    peak: Callable[[], int]


@dataclass(frozen=True)
class NetworkMemory:
    """The memory of a network that a drafter makes from the target's own weights.

    Args:
        stand_in: a twin of the target, with nothing in its cache. The network's cache and passes take no more than this
            one's would.
        weights_bytes: of the network, once it is there.
        working_bytes: the most on top, while it is made or something is measured for it, between rounds.
    """

    stand_in: Model
    weights_bytes: int
    working_bytes: int


@dataclass(frozen=True)
class PairMemory:
    """What reading and writing with a pair takes on top of its weights, predicted from sizes alone.

    Rows of logits are most of it: (nodes, V) of the target, and as much again of a draft model, which keeps what it
    said about every node until the round is over.

    Args:
        drafts: the draft models, as far as they draft.
        law_bytes: what every node carries besides, such as the law that a draw was drawn from.
        made: networks that drafters make, whether they are there yet or not.
        map_bytes: of the map that early pruning learns.
    """

    target: Model
    drafts: tuple[Model, ...] = ()
    law_bytes: int = 0
    made: tuple[NetworkMemory, ...] = ()
    map_bytes: int = 0

    def round_bytes(self, nodes: int, tokens: int, extra_rows: int = 0) -> int:
        """The most in a round with so many nodes behind a text of so many tokens, with the caches it ends with."""
        return self._held(tokens + 1 + nodes + extra_rows) + self._round(nodes, tokens, extra_rows)

    def kept_bytes(self, nodes: int) -> int:
        """What a finished round with so many nodes still holds, for those who read its record."""
        return 4 * (1 + nodes) * self.target.vocab_size + nodes * self.law_bytes

    def prompt_bytes(self, tokens: int) -> int:
        """The most until a prompt of so many tokens has been read, with the caches it leaves."""
        return self._held(tokens) + self._before_rounds(tokens)

    def plain_bytes(self, tokens: int) -> int:
        """The most until a text is so long, without any speculation, if none may be longer."""
        return self._held(tokens + 1, tokens) + max(self._before_rounds(tokens), self._round(0, tokens, 0))

    def most_tokens(self, room_bytes: int) -> int:
        """The longest context that fits into so much; 0 if not even LEAST_TOKENS fit."""
        lengths = range(LEAST_TOKENS, max(LEAST_TOKENS, self.target.context_tokens) + 1)
        fitting = bisect_right(lengths, room_bytes, key=self.plain_bytes)
        return lengths[fitting - 1] if fitting else 0

    @property
    def _models(self) -> Sequence[Model]:
        return [self.target, *self.drafts]

    def _held(self, tokens: int, longest: int | None = None) -> int:
        """Caches, those of the stand-ins among the target's, and the weights that were not there from the start."""
        caches = sum(model.cache_bytes(tokens, longest) for model in self._models)
        return caches + self.map_bytes + sum(network.weights_bytes for network in self.made)

    def _before_rounds(self, tokens: int) -> int:
        """The most on top of the caches, while networks are made or measured, or while the prompt is read."""
        passes = (model.pass_bytes(CHUNK_TOKENS, tokens, logits=False) for model in self._models)
        return max(*passes, *(network.working_bytes for network in self.made), 0)

    def _round(self, nodes: int, tokens: int, extra_rows: int) -> int:
        taken = self.target.pass_bytes(1 + nodes + extra_rows, tokens) + nodes * self.law_bytes
        if nodes:
            drafting = (*self.drafts, *(network.stand_in for network in self.made))
            taken += sum(draft.pass_bytes(nodes, tokens) for draft in drafting)
        return taken + _LAWS_BYTES * self.target.vocab_size
