"""The common base of drafters whose members each draft a tree of their own, below one root."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.core.round import Round
from specchat.core.tree import TokenTree
from specchat.drafters.member_group import MemberGroup
from specchat.drafters.member_paths import MemberPaths
from specchat.drafters.merged_guesses import MergedGuesses
from specchat.drafters.parts import Parts


class SeparateTreeGroup(MemberGroup):
    """Members that are asked about nodes of their own trees alone, and whose guesses are merged by learnt acceptance.

    What is proposed at a node is left to the drafters that extend it.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.members())
        self._guesses = MergedGuesses(parts.choices)
        self._paths = MemberPaths(len(self.members))
        self._tree: TokenTree | None = None

    def start(self, history: Sequence[int]) -> None:
        """Let every member begin; what was learnt about their guesses stays."""
        self._forget_round()
        super().start(history)

    def observe(self, round: Round) -> None:
        """Update the acceptance rates, then let every member learn."""
        self._guesses.learn(round.emitted)
        self._forget_round()
        super().observe(round)

    def close(self) -> None:
        """Close every member."""
        self._forget_round()
        super().close()

    def _paths_to(self, tree: TokenTree, frontier: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Node → the tokens from below the root down to it. A tree that was not seen before begins a round."""
        if self._tree is not tree:
            self._forget_round()
            self._tree = tree
        return {node: tuple(tree.path_tokens(node)) for node in frontier}

    def _forget_round(self) -> None:
        self._guesses.forget_round()
        self._paths.forget_round()
        self._tree = None
