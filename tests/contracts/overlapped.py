"""A loop over the round's own steps that proposes for the next round while the target is at this one. Only for tests.

It has two states: nothing is ahead, or a draft is, made for the text as it will be if the likeliest path of the tree
that is being read stands.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.tree import ROOT, TokenTree
from specchat.decoding.speculate import Cut, Draft, Speculator, take_all


@dataclasses.dataclass
class Ahead:
    """A draft for a text that the target has not written yet.

    Args:
        history: that text; its last token is the root of the draft's tree.
    """

    history: list[int]
    draft: Draft


class Overlapped:
    """Hides drafting behind the pass of the round before, as far as the target says what is expected.

    Attributes:
        reused, dropped: how many drafts made ahead were of use, and how many were not.

    Reference: after Liu et al., PEARL, arXiv:2408.11850 (drafting while verifying).
    """

    def __init__(self, speculator: Speculator) -> None:
        self.speculator = speculator
        self.reused = self.dropped = 0
        self._ahead: Ahead | None = None

    def start(self, context: Context) -> None:
        self._ahead = None
        self.speculator.start(context.history)

    def round(self, context: Context, cut: Cut = take_all) -> Round:
        speculator = self.speculator
        draft = self._fitting(context) or speculator.propose(context, speculator.plan(context))
        with ThreadPoolExecutor(1) as device:
            submitted = device.submit(speculator.submit, draft)
            self._ahead = self._propose_ahead(draft.tree, context)
            return speculator.settle(submitted.result(), context, cut)

    def _propose_ahead(self, tree: TokenTree, context: Context) -> Ahead:
        history = [*context.history, *tree.path_tokens(likeliest_leaf(tree))]
        expected = dataclasses.replace(context, history=history, round=context.round + 1)
        return Ahead(history, self.speculator.propose(expected, self.speculator.plan(expected)))

    def _fitting(self, context: Context) -> Draft | None:
        """The draft made ahead, its tree cut down to what goes on from the text as it is; None where nothing does."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        tree = rooted_at(ahead.draft.tree, ahead.history, context.history)
        if tree is None or tree.drafted == 0:
            self.dropped += 1
            return None
        self.reused += 1
        request = self.speculator.request(tree, ahead.draft.plan.budget)
        return dataclasses.replace(ahead.draft, tree=tree, request=request)


def likeliest_leaf(tree: TokenTree) -> int:
    """The leaf that one comes to by the first child of every node."""
    node = ROOT
    while children := tree.children(node):
        node = children[0]
    return node


def rooted_at(tree: TokenTree, expected: list[int], history: list[int]) -> TokenTree | None:
    """The part of a tree that goes on from a text; None where the text goes another way.

    Args:
        expected: the text that the tree goes on from.
        history: the text that was written.
    """
    if history[: len(expected)] != expected:
        return None
    rest = history[len(expected) :]
    path = tree.follow(rest)
    if len(path) < len(rest):
        return None
    place = {([ROOT, *path])[-1]: ROOT}
    part = TokenTree(history[-1], tree._vocab_size)
    for node in range(len(tree)):
        if node in place:
            place |= {draw.child: part.add(place[node], draw.guess) for draw in tree.draws(node)}
    return part.freeze()
