"""The common base of drafters that merge their members' guesses by learnt acceptance."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.tree import TokenTree
from specchat.drafters.compiled_search import NEVER_SURE, merged_search
from specchat.drafters.member_group import MemberGroup
from specchat.drafters.merged_guesses import MergedGuesses
from specchat.drafters.parts import Parts


class MergingGroup(MemberGroup):
    """Members whose guesses are one list at each node, and of whose guesses it is learnt how often they are right.

    Which member is asked about which node is left to the drafters that extend it.
    """

    def __init__(self, parts: Parts, sure: float = NEVER_SURE, apart: bool = False, top: int = 0) -> None:
        """The members that the settings name; the rest says how compiled code grows trees, as `GuessSearch` has it."""
        super().__init__(parts.members())
        self._guesses = MergedGuesses()
        self._search = merged_search(self.members, sure, apart, top)
        if self._search is not None:
            self._guesses.learn_in(self._search)

    def start(self, history: Sequence[int]) -> None:
        """Let every member begin; what was learnt about their guesses stays."""
        self._forget_round()
        super().start(history)

    def grow_at_once(self, context: Context, plan: GrowthPlan) -> TokenTree | None:
        """The tree of what `propose` says, in one call of compiled code, where all members allow it."""
        return None if self._search is None else self._search.grow(context, plan)

    def observe(self, round: Round) -> None:
        """Update the acceptance rates, which ends the round's guesses, then let every member learn."""
        self._guesses.learn(round.emitted)
        if self._search is not None:
            self._search.learn(round.emitted)
        super().observe(round)

    def close(self) -> None:
        """Close every member."""
        self._forget_round()
        super().close()

    def _forget_round(self) -> None:
        self._guesses.forget_round()
        if self._search is not None:
            self._search.forget_round()
