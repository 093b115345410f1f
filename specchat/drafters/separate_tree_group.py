"""The common base of drafters whose members each draft a tree of their own, below one root."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.core.tree import TokenTree
from specchat.drafters.member_paths import MemberPaths
from specchat.drafters.merging_group import MergingGroup
from specchat.drafters.parts import Parts


class SeparateTreeGroup(MergingGroup):
    """Members that are asked about nodes of their own trees alone, and whose guesses are merged by learnt acceptance.

    What is proposed at a node is left to the drafters that extend it.
    """

    def __init__(self, parts: Parts, top: int = 0) -> None:
        """Of others' guesses those stay that the first member has among its `top`, where it has any; 0: all."""
        super().__init__(parts, apart=True, top=top)
        self._paths = MemberPaths(len(self.members))
        self._tree: TokenTree | None = None

    def _paths_to(self, tree: TokenTree, frontier: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Node → the tokens from below the root down to it. A tree that was not seen before begins a round."""
        if self._tree is not tree:
            self._forget_round()
            self._tree = tree
        return {node: tuple(tree.path_tokens(node)) for node in frontier}

    def _forget_round(self) -> None:
        super()._forget_round()
        self._paths.forget_round()
        self._tree = None
