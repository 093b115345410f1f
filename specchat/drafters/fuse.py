"""A draft model's tree with what was looked up grafted on, as far as the draft model finds it likely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specchat.core.context import Context
from specchat.core.seams import Proposal
from specchat.core.tree import DrawKind, Guess, TokenTree
from specchat.drafters.combine import MemberGroup, MergedGuesses, Path
from specchat.drafters.options import FuseOptions
from specchat.drafters.parts import Parts

_DRAFT, _LOOKUP = 0, 1


class Fuse(MemberGroup):
    """The draft's tree and the lookup's, pruned where the draft finds it unlikely, as one tree.

    The two share nodes as far as they begin with the same tokens; there the lookup's guesses stay only if the draft has
    them among its `top` likeliest. What the lookup has beyond that longest common prefix is grafted as it is: the draft
    makes no pass for it. So long copies cost nothing, and copies that begin unlikely have no place.

    Reference: Quan et al., RASD: Retrieval-Augmented Speculative Decoding, arXiv:2503.03434. Differs: the trees are
    pruned and joined while they grow, level by level, so that a policy can decide where nodes go; guesses are ordered
    by learnt acceptance (see `MergedGuesses`).
    """

    def __init__(self, options: FuseOptions, parts: Parts) -> None:
        members = parts.members()
        self._guesses = MergedGuesses(members, apart=True, top=options.top)
        super().__init__(members, self._guesses)
        self._top = options.top

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node the draft's guesses where it is in the draft's tree, and the lookup's that stay."""
        paths = self._guesses.paths_to(tree, frontier)
        likely = self._ask(_DRAFT, tree, paths, max(width, self._top), context)
        looked_up = self._ask(_LOOKUP, tree, paths, width, context)
        return [
            self._fused(path, likely.get(node), looked_up.get(node, ()), width, context) for node, path in paths.items()
        ]

    def _ask(
        self, index: int, tree: TokenTree, paths: Mapping[int, Path], width: int, context: Context
    ) -> dict[int, Sequence[Guess]]:
        """A member's guesses for those of the nodes that are in its tree."""
        own = [node for node, path in paths.items() if index in self._guesses.paths.owners(path)]
        said = self.members[index].propose(tree, own, width, context) if own else ()
        return dict(zip(own, said, strict=True))

    def _fused(
        self, path: Path, likely: Sequence[Guess] | None, looked_up: Sequence[Guess], width: int, context: Context
    ) -> list[Guess]:
        """The guesses of both for one node.

        Args:
            likely: the draft's, best first; None where the node is not in its tree, nothing where it is silent.
        """
        if likely:
            top = {guess.token for guess in likely[: self._top]}
            looked_up = [guess for guess in looked_up if guess.token in top]
        points: dict[int, Guess] = {}
        for guess in (likely or ())[:width]:
            points.setdefault(guess.token, _point(guess, context))  # two draws of one token are one point
        drafted = list(points.values())
        self._guesses.paths.add(_DRAFT, path, drafted)
        self._guesses.paths.add(_LOOKUP, path, looked_up)
        return self._guesses.merged(path, [drafted, looked_up], width)


def _point(guess: Guess, context: Context) -> Guess:
    """The guess without a claim about how it was drawn: those beside it were chosen by their tokens."""
    return guess.as_point() if context.wants_q else guess._replace(kind=DrawKind.POINT, q=None)
