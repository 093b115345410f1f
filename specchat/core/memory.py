"""The memory that a pair may take, and that a round takes."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specchat.core.context import Context
from specchat.core.request import CHUNK_TOKENS
from specchat.core.seams import Model

LEAST_TOKENS = 512
"""The shortest useful context."""

_LAWS_BYTES = 40
"""What drawing a token works in, for every token of the vocabulary: five vectors in float64."""


@dataclass
class TextClaim:
    """A text's part in the passes that several texts share.

    Args:
        ceiling: the most nodes that the user allows, with forced text where there is a constraint.
        nodes: planned for the next pass; 0 once that is done.
        worth: the probability that a guess of this text is accepted, as it was seen lately.
        kept: nodes of the last round, which is still held.
    """

    tokens: int
    ceiling: int
    nodes: int = 0
    worth: float = 0.5
    kept: int = 0
    extra_rows: int = 0


class TextClaims:
    """The claims of all texts that are being written. A claim goes with the context of its reply."""

    def __init__(self) -> None:
        self._claims: dict[int, tuple[weakref.ref[Context], TextClaim]] = {}

    def of(self, context: Context, ceiling: int) -> TextClaim:
        """The claim of this reply, with the length that its text has now."""
        if id(context) not in self._claims or self._claims[id(context)][0]() is not context:
            claim = TextClaim(len(context.history), ceiling)
            self._claims[id(context)] = weakref.ref(context), claim
        claim = self._claims[id(context)][1]
        claim.tokens = len(context.history)
        return claim

    @property
    def all(self) -> list[TextClaim]:
        self._claims = {key: (ref, claim) for key, (ref, claim) in self._claims.items() if ref() is not None}
        return [claim for _, claim in self._claims.values()]


def shares(claims: Sequence[TextClaim], nodes: int) -> list[int]:
    """So many nodes divided among texts: those that are worth least are dropped first.

    A text's first guess is worth the probability at which its guesses are accepted, the second that squared, and so on.
    """
    worth = ((claim.worth**place, text) for text, claim in enumerate(claims) for place in range(1, claim.ceiling + 1))
    counts = Counter(text for _, text in sorted(worth, key=lambda one: -one[0])[:nodes])
    return [counts[text] for text in range(len(claims))]


@dataclass(frozen=True)
class MemoryLimit:
    """The most memory that may be held, and what is held.

    Args:
        base_bytes: what was held when the models were there and nothing was read.
        peak: the most that was held since then, as it was measured.
    """

    bytes: int
    base_bytes: int
    peak: Callable[[], int]
    claims: TextClaims = field(default_factory=TextClaims)


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
    """The memory that reading and writing with a pair takes on top of its weights, predicted from sizes alone.

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

    def round_bytes(self, nodes: int, tokens: int, extra_rows: int = 0, texts: int = 1, widest: int = -1) -> int:
        """The most in a round with so many nodes behind texts of so many tokens, with the caches it ends with.

        Args:
            extra_rows: of all texts.
            widest: the most nodes of a text; all where there is one text.
        """
        widest = nodes if widest < 0 else widest
        return self._held(tokens + 1 + widest + extra_rows) + self._round(nodes, tokens, extra_rows, texts, widest)

    def kept_bytes(self, nodes: int, texts: int = 1) -> int:
        """Bytes of finished rounds of these texts, with so many nodes, for those who read their records."""
        return 4 * (texts + nodes) * self.target.vocab_size + nodes * self.law_bytes

    def prompt_bytes(self, tokens: int) -> int:
        """The most until a prompt of so many tokens has been read, with the caches it leaves."""
        large = (
            min(model.chunk_bytes, model.pass_bytes(model.chunk_after(0), tokens, logits=False))
            for model in self._models
        )
        return self._held(tokens) + max(self._before_rounds(tokens), *large)

    def plain_bytes(self, tokens: int) -> int:
        """The most until a text is so long, without any speculation, if none may be longer."""
        return self._held(tokens + 1, tokens) + max(self._before_rounds(tokens), self._round(0, tokens, 0))

    def most_tokens(self, room_bytes: int) -> int:
        """The longest context that fits into so much; 0 if not even LEAST_TOKENS fit."""
        lengths = range(LEAST_TOKENS, max(LEAST_TOKENS, self.target.context_tokens) + 1)
        fitting = bisect_right(lengths, room_bytes, key=self.plain_bytes)
        return lengths[fitting - 1] if fitting else 0

    def fit_chunks_(self, tokens: int, room_bytes: int) -> None:
        """Let passes over prompts take what this leaves beside caches for so many tokens. In place."""
        left = room_bytes - self._held(tokens + 1, tokens)
        for model in self._models:
            model.chunk_bytes = left

    @property
    def _models(self) -> Sequence[Model]:
        return [self.target, *self.drafts]

    def _held(self, tokens: int, longest: int | None = None) -> int:
        """Caches, those of the stand-ins among the target's, and the weights that were not there from the start."""
        caches = sum(model.cache_bytes(tokens, longest) for model in self._models)
        return caches + self.map_bytes + sum(network.weights_bytes for network in self.made)

    def _before_rounds(self, tokens: int) -> int:
        """The most on top of the caches, while networks are made or measured, or while the prompt is read.

        In the smallest chunks: larger ones take what is left.
        """
        passes = (model.pass_bytes(CHUNK_TOKENS, tokens, logits=False) for model in self._models)
        return max(*passes, *(network.working_bytes for network in self.made), 0)

    def _round(self, nodes: int, tokens: int, extra_rows: int, texts: int = 1, widest: int = 0) -> int:
        taken = self.target.pass_bytes(texts + nodes + extra_rows, tokens) + nodes * self.law_bytes
        if nodes:
            drafting = (*self.drafts, *(network.stand_in for network in self.made))
            taken += sum(draft.pass_bytes(widest, tokens) for draft in drafting)  # for one text after another
        return taken + _LAWS_BYTES * self.target.vocab_size
