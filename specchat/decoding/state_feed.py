"""Gives a drafter the target's states of the text: of every token exactly once, also after edits and cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.round import Round
from specchat.core.seams import Drafter, Model, OnChunk
from specchat.core.states import HiddenStateSink, PickedRows, TextStates
from specchat.core.tree import ROOT
from specchat.models.decoder.cache_rows import common_prefix
from specchat.models.decoder.prompt_cache import BLOCK_TOKENS, KeptTexts


def wants_states(tap: HiddenStateSink, budget: Budget) -> bool:
    """Whether a round's states are asked for: not where no model may run and its drafter can do without."""
    return budget.passes or tap.skip is None


class StateFeed:
    """A drafter, and the tokens whose states it was given.

    States exist only while a token is read. So where the target holds tokens that the drafter was not given (another
    drafter was in use, or the text is another one), those are read again.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.kept: KeptTexts | None = None
        """Where the target's states go, and where they come from when a text comes again; None: they are read again."""
        self._skips = False  # states of a text that comes again, where the target's rows are kept
        self._given: list[int] = []
        self._waiting: list[TextStates] = []  # given, without a gap, and not all of their blocks are kept yet

    def keep_states_in(self, kept: KeptTexts | None) -> None:
        """Keep what the drafter is given beside what is kept of the target; None: nowhere.

        A drafter that can skip states skips those of a text that comes again, and none are kept for it.
        """
        tap = self.drafter.hidden_state_sink
        self._skips = kept is not None and tap is not None and tap.skip is not None
        if kept is None or tap is None or self._skips:
            self.kept = None
            return
        beside = kept.beside(f"states {' '.join(map(str, sorted(tap.layers)))}")
        if self.kept is None or (self.kept.name, self.kept.eight_bits) != (beside.name, beside.eight_bits):
            self.kept = beside

    def recall(self, target: Model, text: Sequence[int]) -> int:
        """Put back what was kept of the text; how many of its leading tokens need not be read."""
        target.recall(text)
        cached, tap = target.cached(text), self.drafter.hidden_state_sink
        if tap is None:
            return cached
        known = common_prefix(self._given, text)
        if cached - known >= BLOCK_TOKENS:
            if self._skips and tap.skip is not None:
                self._cut(known, target.hidden_size)
                skipped = list(text[known : cached - 1])  # a tree grows behind the state of the last one
                tap.skip(known, skipped)
                self._given += skipped
            elif self.kept is not None:
                self._cut(known, target.hidden_size)
                for states in self._kept_states(text[:cached], known // BLOCK_TOKENS, target.hidden_size):
                    self._give(states)
            known = common_prefix(self._given, text)
        return min(cached, known)

    def _kept_states(self, text: Sequence[int], block: int, width: int) -> Iterator[TextStates]:
        """The states that are kept of a text, block by block, from this one on."""
        tap, kept = self.drafter.hidden_state_sink, self.kept
        if tap is None or kept is None:
            return
        layers = sorted(tap.layers)
        size = len(layers) * BLOCK_TOKENS * width * torch.float32.itemsize
        for found in kept.load(text, block, size):
            rows = found.content.clone().view(torch.float32).view(len(layers), BLOCK_TOKENS, width)
            tokens = tuple(text[found.first : found.end])
            yield TextStates(found.first, tokens, dict(zip(layers, rows, strict=True)))

    def _cut(self, known: int, width: int) -> None:
        """The text goes on otherwise behind these tokens. The states of a block's beginning wait for the rest of it."""
        if known == len(self._given):
            return
        first = known - known % BLOCK_TOKENS
        before, self._waiting = self._waiting, []
        if known > first and self.kept is not None:
            if not before or before[0].first > first:
                before = list(self._kept_states(self._given[: first + BLOCK_TOKENS], first // BLOCK_TOKENS, width))
            if before and before[-1].end >= known:
                states = _joined(before).since(first)
                rows = {layer: states.layers[layer][: known - first] for layer in states.layers}
                self._waiting = [TextStates(first, states.tokens[: known - first], rows)]
        del self._given[known:]

    def _keep(self, states: TextStates) -> None:
        """Keep the blocks that these states complete."""
        kept, waiting = self.kept, self._waiting
        if kept is None:
            waiting.clear()
            return
        if waiting and waiting[-1].end != states.first:
            waiting.clear()
        waiting.append(states)
        first, end = waiting[0].first, states.end - states.end % BLOCK_TOKENS
        if end <= first:
            return
        together = _joined(waiting)

        def content(block: int) -> Tensor:
            at = block * BLOCK_TOKENS - together.first
            rows = [together.layers[layer][at : at + BLOCK_TOKENS] for layer in sorted(together.layers)]
            return torch.stack(rows).to("cpu", torch.float32).view(-1).view(torch.uint8)

        kept.put(self._given[:end], -(-first // BLOCK_TOKENS), content)
        waiting[:] = [together.since(end)] if states.end > end else []

    def read(self, target: Model, text: Sequence[int], on_chunk: OnChunk = None) -> None:
        """Make the target hold a text. States of tokens that are put off come with the next round."""
        tap = self.drafter.hidden_state_sink
        if tap is None:
            target.prefill(text, on_chunk)
            return
        known = common_prefix(self._given, text)
        self._cut(known, target.hidden_size)
        if target.cached(text) > known:
            target.prefill(text[:known])
        target.prefill(text, on_chunk, HiddenStateSink(tap.layers, self._give))

    def take(self, round: Round) -> None:
        """Give the states of what a round read of the text: the root, the accepted path, and what was put off."""
        tap, reading = self.drafter.hidden_state_sink, round.reading
        if tap is None:
            return
        path = (ROOT, *round.verdict.path)
        tokens = [*map(round.tree.tokens.__getitem__, path)]
        if not wants_states(tap, round.budget):
            self._skip(round, tokens)
            return
        tapped = reading.taps
        if len(tapped) > len(tap.layers):  # others asked too
            tapped = {layer: tapped[layer] for layer in tap.layers}
        read = TextStates(round.start - 1, tuple(tokens), PickedRows(tapped, reading.rows(path)))
        before = reading.text_states
        self._give(read if before is None else before.only(tap.layers).then(read))

    def _skip(self, round: Round, read: Sequence[int]) -> None:
        """Tell the drafter of tokens whose states were not asked for: what was put off, and what the round read."""
        tap, known = self.drafter.hidden_state_sink, len(self._given)
        assert tap is not None, "it asked for states"
        assert tap.skip is not None, "states that a drafter needs are not skipped"
        tokens = [*round.history[known : round.start - 1], *read]
        tap.skip(known, tokens)
        self._given.extend(tokens)

    def _give(self, states: TextStates) -> None:
        tap, known = self.drafter.hidden_state_sink, len(self._given)
        assert tap is not None, "it asked for states"
        assert states.first <= known, "a text is read from what the drafter knows on"
        if states.first < known:
            states = states.since(known)
        if states.tokens:
            tap.take(states)
            self._given.extend(states.tokens)
            if self.kept is not None:
                self._keep(states)


def _joined(states: Sequence[TextStates]) -> TextStates:
    """Those of neighbouring stretches as one."""
    return reduce(TextStates.then, states)
