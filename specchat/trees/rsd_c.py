"""RSD-C: every node gets a set number of children, drawn without replacement."""

from __future__ import annotations

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import DrawKind, TokenTree
from specchat.trees.given_shapes import grow_by_levels
from specchat.trees.options import RsdCOptions


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
