"""Lenience: draws are accepted as if the draft had held them less likely than it did."""

from __future__ import annotations

from specchat.acceptance.options import LenientOptions
from specchat.acceptance.recursion import token_after
from specchat.acceptance.walk import own_token, soft_law, walk
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import DrawKind, TokenTree


class Lenient(AcceptanceRule):
    """A draw x from q is accepted with probability min(1, p(x) / (lenience · q(x))).

    After a rejection the next draw, or the last one, is tested against norm((p − lenience · q)+). With lenience 1 that
    is `multi_step`, exactly. Below 1 more is accepted, and no token becomes more likely than p(x) / lenience. At
    temperature 0 the first child with p(x) ≥ lenience · max p stands, p being the target's law at temperature 1.

    Reference: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, arXiv:2211.17192, appendix;
    Zhou et al., DistillSpec, arXiv:2310.08461, which names p / lenience the linear form.
    """

    wanted = DrawKind.IID

    def __init__(self, options: LenientOptions) -> None:
        self._lenience = options.lenience

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        if context.sampling.greedy:
            return walk(tree, reading, lambda node: self._nearly_best(tree, node, reading, context))
        return walk(tree, reading, lambda node: token_after(tree, node, reading, context, self._lenience))

    def _nearly_best(self, tree: TokenTree, node: int, reading: Reading, context: Context) -> int:
        tokens = [tree.tokens[child] for child in tree.children(node)]
        if tokens:
            p = soft_law(tree, node, reading, context)
            least = self._lenience * float(p.max())
            for token, chance in zip(tokens, p[tokens].tolist(), strict=True):
                if chance >= least and self._lenience < 1.0:
                    return token
        return own_token(tree, node, reading, context)
