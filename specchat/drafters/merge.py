"""Several drafters in one tree: equal guesses share a child, and how often each drafter is right is learnt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specchat.core.context import Context
from specchat.core.seams import Proposal
from specchat.core.tree import DrawKind, Guess, TokenTree
from specchat.drafters.combine import MemberGroup, MergedGuesses
from specchat.drafters.options import MergeOptions
from specchat.drafters.parts import Parts


class Merge(MemberGroup):
    """Asks all members about every node and merges their guesses by token, the most probable first.

    How probable a guess is, is learnt (see `MergedGuesses`). A member that runs a model is asked only at nodes where
    no other member has a guess of at least `sure`: quotations are looked up, new text is drafted.

    One drafter may be a member more than once, with different options; its numbered names are then trusted apart.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781 (merging by trie); Oliaro et al., SuffixDecoding,
    arXiv:2411.04975 (looking up first).
    Differs: guesses are ordered by learnt acceptance, not pruned; who is asked is decided node by node.
    """

    mixes_members = True

    @classmethod
    def draw_kinds(cls, options: MergeOptions, members: Sequence[Collection[DrawKind]]) -> frozenset[DrawKind]:
        """Those of all members together, since it leaves sampled draws untouched."""
        return frozenset({DrawKind.POINT}).union(*members)

    def __init__(self, options: MergeOptions, parts: Parts) -> None:
        members = parts.members()
        self._guesses = MergedGuesses(members, options.sure)
        super().__init__(members, self._guesses)
        self._models = {index for index, choice in enumerate(parts.choices) if choice.runs_a_network}
        self._sure = options.sure

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) the members' guesses merged by token; members that run a model are asked last, and only where needed."""
        said: dict[int, list[Sequence[Guess]]] = {node: [()] * len(self.members) for node in frontier}
        sure = self._guesses.any_as_likely
        for index, member in sorted(enumerate(self.members), key=lambda pair: pair[0] in self._models):
            nodes = [node for node in frontier if index not in self._models or not sure(said[node], self._sure)]
            for node, guesses in zip(nodes, member.propose(tree, nodes, width, context) if nodes else (), strict=True):
                said[node][index] = guesses
        return [self._guesses.merged(tuple(tree.path_tokens(node)), said[node], width) for node in frontier]
