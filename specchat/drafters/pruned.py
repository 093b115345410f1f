"""The target without its less important heads and MLP channels drafts for the whole target."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

from safetensors import SafetensorError
from safetensors.torch import load, save

from specchat.core.context import Context
from specchat.core.drafting_networks import Prunable, Ranking
from specchat.core.memory import NetworkMemory
from specchat.core.round import Round
from specchat.core.seams import Drafter, Model, Proposal
from specchat.core.tree import DrawKind, TokenTree
from specchat.drafters.draft_model import DraftModel
from specchat.drafters.options import DraftModelOptions, PrunedOptions
from specchat.drafters.parts import Parts
from specchat.errors import CombinationError

SAMPLE_TOKENS = 64
"""Tokens of each of the texts on which importance is measured."""


class Pruned(Drafter):
    """Drafts as `draft_model` does, with a narrower network made of the target's own weights.

    Heads and channels are ranked by first-order Taylor importance on the last texts of the chat, while the engine is
    idle; the ranking is kept for the next session, as lists of numbers beside the pair. Before that they are ranked by
    the size of their weights. The narrower weights are made in memory when a chat begins.

    Reference: Ma et al., LLM-Pruner, arXiv:2305.11627. Differs: every layer loses as many heads and channels, so that
    the result is a network of the usual shape; nothing is trained afterwards to recover.
    """

    kinds = frozenset(DrawKind)
    """All kinds: the narrower network has a law of its own."""

    @staticmethod
    def network_memory(options: PrunedOptions, prunable: Prunable) -> NetworkMemory:
        """What the narrower network will take."""
        return prunable.memory(options.ratio, options.samples, SAMPLE_TOKENS)

    def __init__(self, options: PrunedOptions, parts: Parts) -> None:
        """Nothing is read before a chat begins; CombinationError if the target's weights cannot be read in parts."""
        if parts.resources.prunable is None:
            raise CombinationError(
                "drafter 'pruned' makes a narrower network of the target's weights, and this target does not run in "
                "specchat's own decoder; nearest that works: drafter 'layer_skip'"
            )
        self._prunable: Prunable = parts.resources.prunable
        self._options = options
        self._parts = parts
        self._ranking: Ranking | None = None  # by texts; None where only weights were looked at
        self._measuring: Iterator[Ranking | None] | None = None
        self._drafting: DraftModel | None = None
        self._passes_before = 0
        self._text: Sequence[int] = ()

    @property
    def passes(self) -> int:
        return self._passes_before + (0 if self._drafting is None else self._drafting.passes)

    @property
    def measured(self) -> bool:
        """Whether importance was measured on texts."""
        return self._ranking is not None

    def start(self, history: Sequence[int]) -> None:
        """Make the narrower network, if there is none yet, and read the text."""
        self._network().start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        return self._network().propose(tree, frontier, width, context)

    def observe(self, round: Round) -> None:
        """Keep the accepted path; where the controller allows it, measure a little."""
        self._text = round.history
        if self._drafting is not None:
            self._drafting.observe(round)
        if round.budget.search:
            self._measure()

    def close(self) -> None:
        self._drafting, self._measuring, self._text = None, None, ()

    def idle(self, deadline: float) -> bool:
        """Measure importance until the deadline, at least one layer; false once it is measured, or without a text."""
        while self._measure():
            if time.monotonic() >= deadline:
                return True
        return False

    def save_state(self) -> bytes:
        return b"" if self._ranking is None else save(dataclasses.asdict(self._ranking))

    def restore_state(self, state: bytes) -> None:
        ranking = _ranking_of(state) if state else None
        if ranking is not None and not ranking.fits(*self._prunable.sizes):
            raise ValueError("it ranks the heads and channels of another network")
        self._use(ranking)

    def _measure(self) -> bool:
        """One piece of work; whether there is more."""
        if self._ranking is not None:
            return False
        if self._measuring is None:
            if not (texts := self._samples()):
                return False
            self._measuring = self._prunable.by_taylor(texts)
        found = next(self._measuring)
        if found is not None:
            self._use(found)
        return found is None

    def _samples(self) -> list[Sequence[int]]:
        """The last tokens of the chat, in texts of one length; none where there are too few."""
        count = min(self._options.samples, len(self._text) // SAMPLE_TOKENS)
        last = self._text[len(self._text) - count * SAMPLE_TOKENS :]
        return [last[at * SAMPLE_TOKENS :][:SAMPLE_TOKENS] for at in range(count)]

    def _use(self, ranking: Ranking | None) -> None:
        """Make the network anew when it is needed next."""
        self._ranking, self._measuring = ranking, None
        self._passes_before, self._drafting = self.passes, None

    def _network(self) -> DraftModel:
        if self._drafting is None:
            ranking = self._ranking or self._prunable.by_magnitude()
            model: Model = self._prunable.pruned(ranking, self._options.ratio)
            self._drafting = DraftModel(DraftModelOptions(trim=0), dataclasses.replace(self._parts, draft_model=model))
        return self._drafting


def _ranking_of(state: bytes) -> Ranking:
    try:
        return Ranking(**load(state))
    except (SafetensorError, TypeError) as error:
        raise ValueError(f"no ranking of heads and channels: {error}") from None
