"""The default rule: draw the target's own token after every visited node, and walk down while it is a child."""

from __future__ import annotations

from collections.abc import Callable

import torch

from specchat.acceptance.walk import walk
from specchat.core.context import Context
from specchat.core.device_copy import to_device
from specchat.core.reading import Reading
from specchat.core.request import FIRST, LOGITS, HeadNeeds
from specchat.core.round import Verdict
from specchat.core.sampling import Sampling, best_token
from specchat.core.seams import AcceptanceRule
from specchat.core.target_draw import draw_batch, draw_library
from specchat.core.tree import TokenTree
from specchat.registry import NoOptions


class Follow(AcceptanceRule):
    """Exact for any tree however it was made, because no draw depends on the tree.

    The token after a node depends on the node's path and position alone (processed log-probabilities plus the
    target stream's noise at that position; at temperature 0 no noise). Plain decoding makes the same draws one
    by one, so the text is the same, up to floating-point near-ties, for every drafter and every tree.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781; Svirschevski et al., SpecExec, arXiv:2406.02532.
    """

    lossless = True

    def __init__(self, options: NoOptions) -> None:
        draw_library()  # so that no round waits for the compiler

    def needs(self, sampling: Sampling) -> HeadNeeds:
        """No logits where the likeliest token is taken always."""
        return FIRST if sampling.by_logits else LOGITS

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        """Walk down from the root for as long as the target's own token is a living child."""
        greedy = context.sampling.by_logits
        if greedy and (first := reading.said.first) is not None:  # the model named them: torch need not be asked
            if len(reading.nodes) == len(tree.tokens):  # all of it, in its order: rows are nodes
                return walk(tree, reading, first.__getitem__)
            return walk(tree, reading, lambda node: first[reading.row(node)])
        if not greedy and (row_of := reading.said.row_in_memory) is not None:
            return walk(tree, reading, lambda node: context.draw_after(tree, node, row_of(reading.row(node))))
        if reading.logits.device.type != "cpu":
            return walk(tree, reading, self.drawn_together(tree, reading, context))
        if greedy:
            return walk(tree, reading, lambda node: best_token(reading.after(node)))
        return walk(tree, reading, lambda node: context.draw_after(tree, node, reading.after(node)))

    def drawn_together(self, tree: TokenTree, reading: Reading, context: Context) -> Callable[[int], int]:
        """The token after any living node, all of them drawn in one computation and copied to the host at once.

        That is what a device is quick at, where every copy waits. A processor draws after visited nodes only.
        """
        nodes = [node for node in reading.nodes if node in reading.alive]
        logits = reading.logits
        if len(nodes) < len(reading.nodes):
            logits = logits[to_device(torch.tensor([reading.row(node) for node in nodes]), logits.device)]
        paths = [tree.path_tokens(node) if context.sampling.penalised else () for node in nodes]
        positions = [context.position(tree, node) for node in nodes]
        tokens = draw_batch(logits, paths, positions, context.sampling, context.counts, context.noise)
        drawn = dict(zip(nodes, tokens, strict=True))

        def token_after(node: int) -> int:
            token = drawn[node]
            return context.draw_after(tree, node, reading.after(node)) if token is None else token

        return token_after
