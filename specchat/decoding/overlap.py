"""Loops that draft while the target reads: PEARL, LLMCad's drafting ahead, and Mirror-SD's branches."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.reading import Reading
from specchat.core.request import EVERYTHING, HeadNeeds, Judging, LayerHook, PassRequest
from specchat.core.round import Round, Verdict
from specchat.core.sampling import best_tokens
from specchat.core.seams import Drafter, OnChunk
from specchat.core.tree import ROOT, TokenTree
from specchat.decoding.early_pruning import EarlyHead
from specchat.decoding.speculate import Cut, Draft, Plan, Speculator, Submitted, take_all

_AHEAD = 1 << 30
"""Added to the number of a round for which is drafted ahead: its draws share no noise with those made in the round."""


@dataclass
class Branch:
    """A tree that was drafted for a text which the target has not confirmed.

    Args:
        history: that text; its last token is the tree's root.
        leaf: the node of the tree being read that is the root; None where the root is a guess of its own.
    """

    history: list[int]
    tree: TokenTree
    budget: Budget
    leaf: int | None

    def going_on(self, history: Sequence[int], budget: Budget) -> TokenTree | None:
        """The part of the tree below a text, which is its root; None where nothing goes on from that text.

        Where a round may draft less than the tree was grown with it is not used, whatever its tokens: leaving it out
        by its size would tell something of draws.
        """
        expected = len(self.history)
        if budget.nodes < self.budget.nodes or budget.depth < self.budget.depth:
            return None
        if len(history) < expected or history[:expected] != self.history:
            return None
        path = self.tree.follow(rest := history[expected:])
        if len(path) < len(rest):
            return None
        tree = self.tree.subtree(path[-1] if path else ROOT)
        return tree if tree.drafted else None


@dataclass
class AheadState:
    """The state that a loop carries from round to round.

    Args:
        drafter: the one that may draft ahead. Where another one stands before it, as under a constraint, rounds are
            sequential.
        branches: drafted while the last pass ran.
        round: the round that was proposed, where something may be drafted ahead in it.
        overlaps: whether the last pass was submitted by the loop itself, and not with other replies' trees.
        reused, dropped: passes of the target during which something was drafted that the next round used, or not.
    """

    drafter: Drafter
    branches: list[Branch] = field(default_factory=list)
    round: tuple[Context, TokenTree, Budget] | None = None
    overlaps: bool = True
    reused: int = 0
    dropped: int = 0
    early: SimpleQueue[tuple[Tensor, Sequence[int]] | None] = field(default_factory=SimpleQueue)
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "target"))


@dataclass
class Overlapped(Speculator):
    """Rounds whose target reads in a thread of its own, while the drafter guesses what comes after its answer.

    All three loops keep branches: trees that go on from a text the target has not confirmed. Once it has, the branch
    that agrees is cut down to what lies below the last token, which is the next round's root, and is read next.

    - `overlap` goes on from the likeliest leaf of the tree that is read. Where nothing agrees the next round drafts
      before it reads, as a sequential one does. Reference: Xu et al., LLMCad, arXiv:2309.04255.
    - `pearl` does the same, but never drafts before it reads: where nothing agrees the target reads the root alone,
      and the first guess made meanwhile is put to the test (pre-verify); else it reads what was drafted, and that and
      the first guess made meanwhile are (post-verify). Reference: Liu et al., PEARL, arXiv:2408.11850. Differs: any
      tree may stand where PEARL has a chain; how much is drafted is the controller's choice.
    - `mirror` taps the target after one of its layers: an early head walks down the tree that is read, and its
      likeliest tokens where it stops are candidates, for each of which a branch is drafted while the later layers run.
      Reference: Bhendawade et al., Mirror-SD, arXiv:2510.13161. Differs: the drafter has no streams that were trained
      into it, and drafts branch after branch; the early head is the target's own, fitted while it writes.

    The guesses after the leaf are judged with the tree, as children of the leaf that were dropped in the pass: an
    accepted one is the bonus token. What lies below them is judged one round later, as if it had been read at once. So
    the law is that of the rule, and under `follow` the text is that of the sequential loop.

    On a device, which runs by itself, the pass is given first, in the same thread.
    """

    loop: str
    state: AheadState
    early: EarlyHead | None = None
    early_layer: int = 0
    candidates: int = 1

    def start(self, history: Sequence[int], on_chunk: OnChunk = None) -> None:
        """Begin a reply. What was drafted ahead in another one is not used: its draws were made with other noise."""
        self.state.branches, self.state.round = [], None
        super().start(history, on_chunk)

    def propose(self, context: Context, plan: Plan) -> Draft:
        draft = super().propose(context, plan)
        if self._may_draft_ahead(context, plan.budget):
            self.state.round = context, draft.tree, plan.budget
        return draft

    def submit(self, draft: Draft) -> Submitted:
        state, passes, given = self.state, self.drafter.passes, time.perf_counter()
        state.overlaps = True
        if state.round is None or state.round[1] is not draft.tree:
            return super().submit(draft)
        state.early = SimpleQueue()
        reading = self._start(draft)
        try:
            state.branches = list(self._draft_ahead(*state.round))
        finally:
            submitted = reading.result()
        draft = replace(draft, passes=draft.passes + self.drafter.passes - passes)
        return replace(submitted, draft=draft, given=given, returned=time.perf_counter())

    def settle(self, submitted: Submitted, context: Context, cut: Cut = take_all) -> Round:
        round = super().settle(submitted, context, cut)
        self.state.round = None
        if self.early is not None:
            self.early.learn(round.reading)
        return round

    def request(
        self,
        tree: TokenTree,
        budget: Budget,
        needs: HeadNeeds = EVERYTHING,
        shown: frozenset[int] = frozenset(),
        judging: Judging | None = None,
    ) -> PassRequest:
        if self.early is None or budget.nodes == 0:
            return super().request(tree, budget, needs, shown, judging)
        request = super().request(tree, budget, needs, shown | self.early.taps, judging)
        hook = LayerHook(frozenset({self.early_layer - 1}), self._tap)
        return replace(request, hooks=(*request.hooks, hook))

    def _grow(self, context: Context, budget: Budget) -> TokenTree:
        state = self.state
        branches, state.branches, state.round = state.branches, [], None
        overlapped, state.overlaps = state.overlaps, False
        if not self._may_draft_ahead(context, budget):
            return super()._grow(context, budget)
        found = (branch.going_on(context.history, budget) for branch in branches)
        tree = next((tree for tree in found if tree is not None), None)
        if branches:
            state.reused, state.dropped = state.reused + (tree is not None), state.dropped + (tree is None)
        if tree is not None:
            return tree
        if self.loop == "pearl" and overlapped:
            return TokenTree(context.root, context.vocab_size).freeze()
        return super()._grow(context, budget)

    def _judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        for branch in self.state.branches:
            if branch.leaf is not None:
                guesses = [draw.guess for draw in branch.tree.draws(ROOT)]
                return replace(super()._judge(tree.with_children(branch.leaf, guesses), reading, context), tree=tree)
        return super()._judge(tree, reading, context)

    def _may_draft_ahead(self, context: Context, budget: Budget) -> bool:
        return budget.nodes > 0 and self.drafter is self.state.drafter and context.constraint is None

    def _start(self, draft: Draft) -> Future[Submitted]:
        """The pass, begun; it ends by telling a drafter that still waits for candidates that none will come."""

        def read() -> Submitted:
            try:
                return super(Overlapped, self).submit(draft)
            finally:
                self.state.early.put(None)

        if self._on_host:
            return self.state.worker.submit(read)
        done: Future[Submitted] = Future()
        done.set_result(read())
        return done

    def _draft_ahead(self, context: Context, tree: TokenTree, budget: Budget) -> Iterator[Branch]:
        node, roots = (likeliest_leaf(tree), ()) if self.loop != "mirror" else self._candidates(context, tree)
        before = [*context.history, *tree.path_tokens(node)]
        for history in [[*before, token] for token in roots] if self.loop == "mirror" else [before]:
            expected = replace(context, history=history, round=context.round + _AHEAD)
            grown = self.policy.grow(self.drafter, expected, budget)
            yield Branch(history, grown, budget, None if self.loop == "mirror" else node)

    def _tap(self, layer: int, hidden: Tensor, nodes: Sequence[int]) -> None:
        assert self.early is not None, "only mirror taps the pass"
        self.state.early.put((self.early.logits(hidden), tuple(nodes)))

    def _candidates(self, context: Context, tree: TokenTree) -> tuple[int, Sequence[int]]:
        """Where the early head's walk down the tree stops, and its likeliest tokens there that are no nodes."""
        said = self.state.early.get()
        if said is None:
            return ROOT, ()
        logits, nodes = said
        rows = {node: logits[row] for row, node in enumerate(nodes)}
        node = ROOT
        while True:
            children = {tree.tokens[child] for child in tree.children(node)}
            tokens = self._likeliest(context, tree, node, rows[node], self.candidates + len(children))
            child = tree.child(node, tokens[0])
            if child is None or child not in rows:
                return node, [token for token in tokens if token not in children][: self.candidates]
            node = child

    def _likeliest(self, context: Context, tree: TokenTree, node: int, logits: Tensor, count: int) -> list[int]:
        """The best first: the token that the target would draw if it said the same at its end, then the next ones."""
        if context.sampling.greedy:
            penalised = context.penalised(tree, node, logits)
            return [int(token) for token in best_tokens(penalised[None], min(count, len(penalised)))[1][0]]
        law = context.law_after(tree, node, logits)
        return [int(token) for token in law.best(count, context.noise, Stream.TARGET, context.position(tree, node))]


def likeliest_leaf(tree: TokenTree) -> int:
    """The leaf below the likeliest child of every node; the first where none says how likely it is."""
    node = ROOT
    while draws := tree.draws(node):
        node = max(draws, key=lambda draw: -math.inf if draw.guess.logprob is None else draw.guess.logprob).child
    return node
