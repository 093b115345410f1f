"""A text that the reply is expected to follow, proposed before what any drafter guesses."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from specchat.core.context import Context
from specchat.core.head_needs import HeadNeeds
from specchat.core.optional_drafter_abilities import needs_of
from specchat.core.request import ExtraRow
from specchat.core.round import Round
from specchat.core.seams import Drafter, Proposal
from specchat.core.states import HiddenStateSink
from specchat.core.tree import DrawKind, Guess, TokenTree
from specchat.drafters import REFERENCE
from specchat.indexes.aligned_text import AlignedText, Alignment

_HABIT = 4.0
"""How many trials of experience the first guess at a rate counts for."""

_SURE = 0.6
"""A drafter is not asked at a node where the reference is right at least so often."""


class ExpectedReply:
    """The reference of one reply: how far the reply has followed it, and how often it was right."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._text = AlignedText(tokens)
        self._at = Alignment()
        self._last: int | None = None
        self._seen: dict[int, tuple[int, int]] = {}  # length of the run → hits, trials

    def after(self, path: Sequence[int]) -> tuple[int, float] | None:
        """The token expected after these further tokens, and how often such a guess is right."""
        at, last = self._at, self._last
        for token in path:
            at, last = self._text.advance(at, last, token), token
        expected = self._text.next_token(at)
        return None if expected is None else (expected, self._rate(at.run))

    def emit(self, tokens: Sequence[int]) -> None:
        """The reply went on with these tokens."""
        for token in tokens:
            expected = self._text.next_token(self._at)
            if expected is not None:
                hits, trials = self._seen.get(self._at.run, (0, 0))
                self._seen[self._at.run] = hits + (token == expected), trials + 1
            self._at, self._last = self._text.advance(self._at, self._last, token), token

    def _rate(self, run: int) -> float:
        hits, trials = self._seen.get(run, (0, 0))
        return (hits + _HABIT * (run + 2) / (run + 3)) / (trials + _HABIT)


class WithReference:
    """A drafter whose guesses stand behind those of a reference. A `Drafter`.

    The reference has one guess for a node: the token that follows where the node's path stands in it. Where it is
    mostly right the drafter is not asked, which saves a draft model's pass; elsewhere the likelier guess comes first.
    Sampled draws of the drafter keep their order and their distribution: whether it is asked never depends on what it
    would draw.

    Reference: Yang et al., Inference with Reference, arXiv:2304.04487. Differs: the reference is followed by an
    alignment that survives changes, not found anew by matching in every round; how far to trust it is learnt.
    """

    def __init__(self, drafter: Drafter, expected: ExpectedReply) -> None:
        self._drafter = drafter
        self._expected = expected

    @staticmethod
    def draw_kinds(options: Any, members: Sequence[Collection[DrawKind]]) -> Collection[DrawKind]:
        """Those of the drafter: the reference adds points alone."""
        return members[0]

    @property
    def taps(self) -> Collection[int]:
        """The drafter's."""
        return self._drafter.taps

    @property
    def needs(self) -> HeadNeeds:
        """The drafter's."""
        return needs_of(self._drafter)

    @property
    def hidden_state_sink(self) -> HiddenStateSink | None:
        """The drafter's."""
        return self._drafter.hidden_state_sink

    @property
    def passes(self) -> int:
        """The drafter's."""
        return self._drafter.passes

    def start(self, history: Sequence[int]) -> None:
        """The drafter begins; where the reply is in the reference is found by what it emits."""
        self._drafter.start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) guesses: the reference's among those of the drafter, which is asked where the reference is not sure."""
        expected = {node: self._expected.after(tree.path_tokens(node)) for node in frontier}
        unsure = [node for node, guess in expected.items() if guess is None or guess[1] < _SURE]
        asked = self._drafter.propose(tree, unsure, width, context) if unsure else ()
        said = dict(zip(unsure, asked, strict=True))
        return [_joined(expected[node], said.get(node, ()), width) for node in frontier]

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        """The drafter's."""
        return self._drafter.extra_rows(tree)

    def observe(self, round: Round) -> None:
        """Follow the reference with what was emitted, then let the drafter learn."""
        self._expected.emit(round.emitted)
        self._drafter.observe(round)

    def close(self) -> None:
        """Nothing of its own: the drafter outlives the reply."""


def _joined(expected: tuple[int, float] | None, said: Sequence[Guess], width: int) -> Sequence[Guess]:
    """The reference's guess among the drafter's: after sampled draws, else where its rate puts it."""
    if expected is None:
        return said
    token, rate = expected
    sureness = math.log(rate)
    own = Guess(token, logprob=sureness, proposer=REFERENCE)
    if any(guess.kind is not DrawKind.POINT for guess in said):
        return [*said[: max(1, width - 1)], own][:width]
    others = [guess for guess in said if guess.token != token]
    less_sure = (at for at, guess in enumerate(others) if guess.logprob is None or guess.logprob <= sureness)
    place = next(less_sure, len(others))
    return [*others[:place], own, *others[place:]][:width]
