"""Graph-structured drafting: of paths that end in the same tokens one is drafted, and the others copy what follows."""

from __future__ import annotations

from collections.abc import Mapping

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.context import Context
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import ROOT, DrawKind, TokenTree
from specchat.trees.growth import Growth
from specchat.trees.options import GraphOptions

Suffix = tuple[int, ...]


class Graph(TreePolicy):
    """A directed graph of guesses, unfolded into a tree before it is verified.

    A node whose last tokens are also those of another node, at least as likely and not on its own path, is not given
    to the drafter. It is linked to that node, and what was guessed there is copied below it, links included, as far as
    nodes, depth and prices go. So the same continuation is drafted once and stands in the tree several times.

    A copy is a point: its token was drawn elsewhere. It is worth no more than what it was copied from, so it takes no
    draw's place; with independent draws that would not hold, and they are refused.

    Reference: Gong et al., Graph-Structured Speculative Decoding, arXiv:2407.16207. Differs: unfolding is best first
    within the budget instead of breadth first up to 100 tokens; unlikely branches go by their worth alone.
    """

    keeps_draws = True
    unsuited_draws = frozenset({DrawKind.IID})

    def __init__(self, options: GraphOptions) -> None:
        self._length = options.repeat + 1

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        plan = GrowthPlan(budget, levels=True, repeat=self._length)
        if (tree := drafter.grow_at_once(context, plan)) is not None:
            return tree
        growth, width = Growth(context, budget), budget.width
        drafted: dict[Suffix, int] = {}
        links: dict[int, int] = {}
        level = [ROOT] if width > 0 else []
        while level := growth.that_may_have_children(level):
            asked = self._unlike(level, growth, context, drafted, links)
            if not asked:
                break
            level = growth.consider_all(asked, growth.ask(drafter, asked, width), width)
        unfold(growth, links, width)
        return growth.best_tree()

    def _unlike(
        self, level: list[int], growth: Growth, context: Context, drafted: dict[Suffix, int], links: dict[int, int]
    ) -> list[int]:
        """The nodes of a level that the drafter is to be asked about, in their order; the others are linked."""
        asked: list[int] = []
        for node in sorted(level, key=growth.worth, reverse=True):
            path = growth.tree.path_tokens(node)
            suffix = tuple([*context.history[-self._length :], *path][-self._length :])
            source = drafted.get(suffix)
            worthier = source is None or growth.worth(source) < growth.worth(node)
            if source is None or worthier or source in (ROOT, *growth.tree.path(node)):
                asked.append(node)
                if worthier:
                    drafted[suffix] = node
            else:
                links[node] = source
        return sorted(asked)


def unfold(growth: Growth, links: Mapping[int, int], width: int) -> None:
    """Copy below every linked node what was guessed below the node that it links to, one with the same last tokens."""
    tree = growth.tree
    waiting = sorted(links.items())
    for node, source in waiting:  # grows while it is walked
        if not growth.may_have_children(node):
            continue
        guesses = [draw.guess.as_point() for draw in tree.draws(source)][:width]
        for rank, child in growth.consider(node, guesses).items():
            below = tree.child(source, guesses[rank].token)
            assert below is not None, "every draw has its node"
            waiting.append((child, links.get(below, below)))
