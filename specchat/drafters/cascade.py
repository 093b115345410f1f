"""Drafters in order: for each node only the first that has a guess is used."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from specchat.core.context import Context
from specchat.core.seams import Proposal
from specchat.core.tree import DrawKind, Guess, TokenTree
from specchat.drafters.combine import MemberGroup
from specchat.drafters.options import CascadeOptions
from specchat.drafters.parts import Parts


class Cascade(MemberGroup):
    """Asks each member only about the nodes for which no earlier one has a guess.

    So a draft model at the end runs only where the lookups before it found nothing, node by node. All members learn
    from every round.

    Points count as a guess if the likeliest of them is at least `least` likely, as their drafter claims; those
    of the last member always count, since nobody is asked after it. Sampled draws always do: whether they stay must not
    depend on their tokens.

    specchat's own; lookups before a model as in Oliaro et al., SuffixDecoding, arXiv:2411.04975. Differs from `merge`:
    guesses of two members never stand beside each other, and nothing is learnt about whom to trust.
    """

    @classmethod
    def draw_kinds(cls, options: CascadeOptions, members: Sequence[Collection[DrawKind]]) -> frozenset[DrawKind]:
        """Those of all members together: a member's draws are handed on whole or were never made."""
        return frozenset({DrawKind.POINT}).union(*members)

    @staticmethod
    def names_sources(options: CascadeOptions, members: Sequence[bool]) -> bool:
        """Where a member does: its guesses are handed on as they are."""
        return any(members)

    def __init__(self, options: CascadeOptions, parts: Parts) -> None:
        super().__init__(parts.members())
        self._least = math.log(options.least) if options.least > 0.0 else -math.inf

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node the guesses of the first member that has any."""
        said: dict[int, Sequence[Guess]] = {}
        for member in self.members:
            open_nodes = [node for node in frontier if node not in said]
            if not open_nodes:
                break
            proposed = dict(zip(open_nodes, member.propose(tree, open_nodes, width, context), strict=True))
            last = member is self.members[-1]
            said |= proposed if last else {node: some for node, some in proposed.items() if self._says_something(some)}
        return [said.get(node, ()) for node in frontier]

    def _says_something(self, guesses: Sequence[Guess]) -> bool:
        if any(guess.kind is not DrawKind.POINT for guess in guesses):
            return True
        return any(guess.logprob is None or guess.logprob >= self._least for guess in guesses)
