"""`chain`, `comb`, `expansion` and `rsd_c`: trees whose shape is given before their tokens are known.

A shape says how many children a path of ranks has, or all nodes of a level.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan, RankShape
from specchat.core.context import Context
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import ROOT, DrawKind, TokenTree
from specchat.registry import NoOptions
from specchat.trees.growth import Growth
from specchat.trees.options import ExpansionOptions, RankPath, RsdCOptions


@dataclass(frozen=True)
class StaticShape:
    """How many children every path of ranks gets that has some; () is the root."""

    children: Mapping[RankPath, int]

    @cached_property
    def as_numbers(self) -> RankShape | None:
        """The same for compiled code; None without any path."""
        paths = sorted(self.children, key=len)
        number = {path: at for at, path in enumerate(paths)}
        widths, begins, below = array("i"), array("i"), array("i")
        for path in paths:
            widths.append(self.children[path])
            begins.append(len(below))
            below.extend(number.get((*path, rank), -1) for rank in range(self.children[path]))
        return RankShape(widths, begins, below) if () in self.children else None


def grow_by_ranks(drafter: Drafter, context: Context, budget: Budget, shape: StaticShape) -> TokenTree:
    """The frozen tree of this shape, as far as prices and proposals go."""
    if shape.as_numbers is not None:
        plan = GrowthPlan(budget, levels=True, shape=shape.as_numbers)
        if (tree := drafter.grow_at_once(context, plan)) is not None:
            return tree
    growth, children = Growth(context, budget), shape.children
    level: dict[RankPath, int] = {(): ROOT}
    while level := {path: node for path, node in level.items() if path in children and growth.may_have_children(node)}:
        width = max(children[path] for path in level)
        proposal = growth.ask(drafter, list(level.values()), width)
        level = {
            (*path, rank): child
            for (path, node), guesses in zip(level.items(), proposal, strict=True)
            for rank, child in growth.consider(node, guesses[: children[path]]).items()
        }
    return growth.best_tree()


def grow_by_levels(drafter: Drafter, context: Context, budget: Budget, widths: Sequence[int]) -> TokenTree:
    """Give every node of depth i up to `widths[i]` children, until nodes, depth, widths, prices or proposals run out.

    The decision to add a sampled draw never looks at its token, so independent draws stay distributed as their q says.

    Returns:
        A frozen tree of at most 1 + `budget.nodes` nodes.
    """
    growth = Growth(context, budget)
    frontier: list[int] = [ROOT]
    for width in widths[: budget.depth]:
        frontier = growth.that_may_have_children(frontier)[: growth.room]
        if not frontier:
            break
        proposal = growth.ask(drafter, frontier, min(width, growth.room))
        frontier = [
            child
            for parent, guesses in zip(frontier, proposal, strict=True)
            for child in growth.consider(parent, guesses[: min(width, growth.room)]).values()
        ]
    return growth.best_tree()


class Chain(TreePolicy):
    """One branch, as deep as the budget and the drafter go.

    Reference: Chen et al., Accelerating Large Language Model Decoding with Speculative Sampling, arXiv:2302.01318.
    """

    keeps_draws = True

    def __init__(self, options: NoOptions) -> None:
        self._known: dict[int, StaticShape] = {}  # by depth

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        depth = min(budget.depth, budget.nodes)
        if depth not in self._known:
            self._known[depth] = StaticShape({(0,) * above: 1 for above in range(depth)})
        return grow_by_ranks(drafter, context, budget, self._known[depth])


class Comb(TreePolicy):
    """Of the nodes of a chain and of their siblings those of most worth. Siblings get no children.

    The drafter is asked about one node at each depth, as for a chain: so many steps as the budget is deep, whatever
    its nodes. For a drafter whose steps cost time that gives nearly what `best_first` gives, for fewer of them.

    Whether a sampled draw stays never depends on its token: the first draw of a node is the one that is expanded, and
    worth is as in `best_first`.

    Reference: the shape is the one that SWIFT (arXiv:2410.06916) verifies. Differs: nodes compete by their worth.
    """

    keeps_draws = True

    def __init__(self, options: NoOptions) -> None:
        self._shapes: dict[tuple[int, int], StaticShape] = {}  # by width and depth

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        width, levels = budget.width, budget.depth if budget.nodes > 0 and budget.width > 0 else 0
        if (width, levels) not in self._shapes:
            self._shapes[width, levels] = StaticShape({(0,) * depth: width for depth in range(levels)})
        return grow_by_ranks(drafter, context, budget, self._shapes[width, levels])


class Expansion(TreePolicy):
    """Every node at depth i − 1 gets k_i children, breadth first, until the nodes are used up.

    Without explicit widths it is <width, 1, 1, …>: so many chains side by side.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781.
    """

    keeps_draws = True

    def __init__(self, options: ExpansionOptions) -> None:
        self._widths = options.per_depth()
        self._known: dict[tuple[int, ...], RankShape] = {}

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        widths = (self._widths or (budget.width, *[1] * (budget.depth - 1)))[: budget.depth]
        if widths and widths not in self._known:
            self._known[widths] = _numbers_of_levels(widths)
        plan = GrowthPlan(budget, levels=True, first_come=True, shape=self._known.get(widths))
        return drafter.grow_at_once(context, plan) or grow_by_levels(drafter, context, budget, widths)


def _numbers_of_levels(widths: Sequence[int]) -> RankShape:
    """One node of the shape for every depth."""
    begins = [sum(widths[:depth]) for depth in range(len(widths))]
    deepest = len(widths) - 1
    below = [depth + 1 if depth < deepest else -1 for depth, width in enumerate(widths) for _ in range(width)]
    return RankShape(array("i", widths), array("i", begins), array("i", below))


class RsdC(TreePolicy):
    """Branching b = (b1, …, bL): a node at depth i − 1 gets the b_i tokens of highest log q plus Gumbel noise.

    Those are draws from q without replacement, which the rule `recursive` judges exactly, and siblings never share a
    token. The drafter makes them. Under `follow` the children are points: a draft model's likeliest tokens, or its
    top-k with the target's own noise. Independent draws are not what this tree is: `multi_step` is refused.

    Reference: Jeon et al., Recursive Speculative Decoding, arXiv:2402.14160 (RSD-C).
    """

    keeps_draws = True
    unsuited_draws = frozenset({DrawKind.IID})

    def __init__(self, options: RsdCOptions) -> None:
        self._branching = options.per_depth()

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        widths = [min(b, budget.width) for b in self._branching or (budget.width,) * budget.depth]
        return grow_by_levels(drafter, context, budget, widths)
