"""The target without its less important heads, MLP channels or dimensions drafts for the whole target."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from specchat.core.context import Context
from specchat.core.drafting_networks import LeftOut, Prunable, Ranking, Recovered
from specchat.core.memory import NetworkMemory
from specchat.core.round import Round
from specchat.core.seams import Drafter, Model, Proposal
from specchat.core.tree import DrawKind, TokenTree
from specchat.drafters.draft_model import DraftModel
from specchat.drafters.options import PRUNED_GROUPS, DraftModelOptions, PrunedOptions, pruned_groups
from specchat.drafters.parts import Parts
from specchat.errors import CombinationError

SAMPLE_TOKENS = 64
"""Tokens of each of the texts on which importance is measured."""

_KEPT_ADDITIONS = 2
"""For so many narrower networks what they learnt is kept."""


class Pruned(Drafter):
    """Drafts as `draft_model` does, with a narrower network made of the target's own weights.

    Heads, channels and dimensions are ranked by first-order Taylor importance on the last texts of the chat, while the
    engine is idle; the ranking is kept for the next session, as lists of numbers beside the pair. Before that they are
    ranked by the size of their weights. The narrower weights are made in memory when a chat begins. With `recover`,
    low-rank additions to them are learnt from the same texts afterwards, and kept too.

    Reference: Ma et al., LLM-Pruner, arXiv:2305.11627. Differs: every layer loses as many heads and channels, so that
    the result is a network of the usual shape; it recovers on the chat's texts, and nothing is added to queries and
    keys.
    """

    kinds = frozenset(DrawKind)
    """All kinds: the narrower network has a law of its own."""

    @staticmethod
    def network_memory(options: PrunedOptions, prunable: Prunable) -> NetworkMemory:
        return prunable.memory(_left_out(options), options.samples, SAMPLE_TOKENS, options.recover > 0)

    def __init__(self, options: PrunedOptions, parts: Parts) -> None:
        """Nothing is read before a chat begins; CombinationError if the target's weights cannot be read in parts."""
        if parts.resources.prunable is None:
            raise CombinationError(
                "drafter 'pruned' makes a narrower network of the target's weights, and this target does not run in "
                "specchat's own decoder; nearest that works: drafter 'layer_skip'"
            )
        self._prunable: Prunable = parts.resources.prunable
        self._options, self._left_out = options, _left_out(options)
        self._sizes = ".".join(map(str, self._prunable.sizes_without(self._left_out)))
        self._parts = parts
        self._ranking: Ranking | None = None  # by texts; None where only weights were looked at
        self._measuring: Iterator[Ranking | None] | None = None
        self._recovered: dict[str, Recovered] = {}  # by the sizes of the network that learnt it
        self._recovering: Iterator[Recovered | None] | None = None
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
        self._drafting, self._measuring, self._recovering, self._text = None, None, None, ()

    def idle(self, deadline: float) -> bool:
        """Measure importance until the deadline, and then recover, at least one layer; false once that is done, or
        without a text."""
        while self._measure():
            if time.monotonic() >= deadline:
                return True
        return False

    def save_state(self) -> bytes:
        if self._ranking is None:
            return b""
        tensors = dataclasses.asdict(self._ranking)
        for sizes, recovered in self._recovered.items():
            for (layer, name), (down, up) in recovered.items():
                place = f"{sizes}/{layer}/{name}"
                tensors |= {f"down/{place}": down.bfloat16(), f"up/{place}": up.bfloat16()}
        return save(tensors)

    def restore_state(self, state: bytes) -> None:
        ranking, recovered = _read_state(state) if state else (None, {})
        if ranking is not None and not ranking.fits(*self._prunable.sizes):
            raise ValueError("it ranks the units of another network")
        self._use(ranking, recovered)

    def _measure(self) -> bool:
        """One piece of work; whether there is more."""
        if self._ranking is not None:
            return self._recover(self._ranking)
        if self._measuring is None:
            if not (texts := self._samples()):
                return False
            self._measuring = self._prunable.by_taylor(texts)
        found = next(self._measuring)
        if found is not None:
            self._use(found, {})
        return found is None or self._options.recover > 0

    def _recover(self, ranking: Ranking) -> bool:
        if not self._options.recover or self._sizes in self._recovered:
            return False
        if self._recovering is None:
            if len(texts := self._samples()) < 2:
                return False
            self._recovering = self._prunable.recover(ranking, self._left_out, texts, self._options.recover)
        found = next(self._recovering)
        if found is not None:
            others = list(self._recovered.items())[-_KEPT_ADDITIONS + 1 :]
            self._use(ranking, dict([*others, (self._sizes, found)]))
        return found is None

    def _samples(self) -> list[Sequence[int]]:
        """The last tokens of the chat, in texts of one length; none where there are too few."""
        count = min(self._options.samples, len(self._text) // SAMPLE_TOKENS)
        last = self._text[len(self._text) - count * SAMPLE_TOKENS :]
        return [last[at * SAMPLE_TOKENS :][:SAMPLE_TOKENS] for at in range(count)]

    def _use(self, ranking: Ranking | None, recovered: dict[str, Recovered]) -> None:
        """Make the network anew when it is needed next."""
        self._ranking, self._measuring = ranking, None
        self._recovered, self._recovering = recovered, None
        self._passes_before, self._drafting = self.passes, None

    def _network(self) -> DraftModel:
        if self._drafting is None:
            ranking = self._ranking or self._prunable.by_magnitude()
            added = self._recovered.get(self._sizes, {}) if self._options.recover else {}
            model: Model = self._prunable.pruned(ranking, self._left_out, added)
            self._drafting = DraftModel(DraftModelOptions(trim=0), dataclasses.replace(self._parts, draft_model=model))
        return self._drafting


def _left_out(options: PrunedOptions) -> LeftOut:
    named = pruned_groups(options.groups)
    return LeftOut(**{group: options.ratio for group in PRUNED_GROUPS if group in named})


def _read_state(state: bytes) -> tuple[Ranking, dict[str, Recovered]]:
    """The ranking, and the additions by the sizes of their networks; ValueError for anything else."""
    try:
        tensors = load(state)
        recovered: dict[str, dict[tuple[int, str], tuple[Tensor, Tensor]]] = {}
        for key in [key for key in tensors if key.startswith("down/")]:
            _, sizes, layer, name = key.split("/")
            down, up = tensors.pop(key).float(), tensors.pop(key.replace("down", "up", 1)).float()
            if not (down.isfinite().all() and up.isfinite().all() and down.dim() == up.dim() == 2):
                raise ValueError(f"{key!r} is no matrix of numbers")
            recovered.setdefault(sizes, {})[int(layer), name] = down, up
        return Ranking(**tensors), {**recovered}
    except (SafetensorError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"no ranking of units: {error}") from None
