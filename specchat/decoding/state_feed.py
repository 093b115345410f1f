"""Gives a drafter the target's states of the text: of every token exactly once, also after edits and cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specchat.core.budget import Budget
from specchat.core.round import Round
from specchat.core.seams import Drafter, Model
from specchat.core.states import HiddenStateSink, PickedRows, TextStates
from specchat.core.tree import ROOT


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
        self._given: list[int] = []

    def reusable(self, target: Model, text: Sequence[int]) -> int:
        """How many leading tokens of the text need not be read."""
        cached = target.cached(text)
        return cached if self.drafter.hidden_state_sink is None else min(cached, self._known(text))

    def read(self, target: Model, text: Sequence[int], on_chunk: Callable[[int, int], None] | None = None) -> None:
        """Make the target hold a text. States of tokens that are put off come with the next round."""
        tap = self.drafter.hidden_state_sink
        if tap is None:
            target.prefill(text, on_chunk)
            return
        known = self._known(text)
        del self._given[known:]
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

    def _known(self, text: Sequence[int]) -> int:
        """How many leading tokens of the text it was given."""
        pairs = enumerate(zip(self._given, text, strict=False))
        return next((place for place, (one, other) in pairs if one != other), min(len(self._given), len(text)))
