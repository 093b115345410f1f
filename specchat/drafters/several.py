"""Several drafters that grow a tree each, and the one tree that holds them all."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specchat.core.context import Context
from specchat.core.seams import Proposal
from specchat.core.tree import DrawKind, Guess, TokenTree
from specchat.drafters.combine import MemberGroup, MergedGuesses
from specchat.drafters.options import SeveralOptions
from specchat.drafters.parts import Parts


class Several(MemberGroup):
    """Each member drafts below its own guesses alone; trees that begin with the same tokens share them.

    So the paths of the tree are those of all members together, as far as width and nodes allow, and no others. A member
    pays passes only for its own tree, whatever the others guess. Where members agree a node carries all their names,
    and what each of them would say next stands below it. How probable a guess is, is learnt for every combination of
    members (see `MergedGuesses`). Sampled draws of the members take turns, so that each has a part of the width.

    A member that samples its draws is asked about every node: were it asked below its own draws alone, what it says
    there could decide whether a draw has a place, and that must not depend on the draw's token.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781 (merge-based speculation). Differs: members are any drafters,
    not models that were tuned to complement each other; guesses are ordered by learnt acceptance.
    """

    mixes_members = True

    @classmethod
    def draw_kinds(cls, options: SeveralOptions, members: Sequence[Collection[DrawKind]]) -> frozenset[DrawKind]:
        """Those of all members together: whether a member that samples is asked depends on none of its draws."""
        return frozenset({DrawKind.POINT}).union(*members)

    def __init__(self, options: SeveralOptions, parts: Parts) -> None:
        members = parts.members()
        self._guesses = MergedGuesses(members, apart=True)
        super().__init__(members, self._guesses)
        self._samplers = [any(kind is not DrawKind.POINT for kind in choice.draw_kinds) for choice in parts.choices]

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node the guesses of the members in whose trees it is, merged by token."""
        paths = self._guesses.paths_to(tree, frontier)
        said: dict[int, list[Sequence[Guess]]] = {node: [()] * len(self.members) for node in frontier}
        owners = {node: self._guesses.paths.owners(path) for node, path in paths.items()}
        sampled = context.wanted is not DrawKind.POINT and not context.sampling.greedy
        for index, member in enumerate(self.members):
            everywhere = sampled and self._samplers[index]
            own = [node for node in frontier if everywhere or index in owners[node]]
            for node, guesses in zip(own, member.propose(tree, own, width, context) if own else (), strict=True):
                said[node][index] = guesses
                self._guesses.paths.add(index, paths[node], guesses)
        return [self._guesses.merged(paths[node], said[node], width) for node in frontier]
