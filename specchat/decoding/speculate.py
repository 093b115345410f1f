"""The round: plan, draft, verify, judge, keep, learn. If you read one file, read this one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.device_copy import synchronize
from specchat.core.request import PassRequest
from specchat.core.round import Round, Timings
from specchat.core.seams import AcceptanceRule, Controller, Drafter, Model, TreePolicy
from specchat.core.tree import TokenTree
from specchat.decoding.state_feed import StateFeed

Cut = Callable[[Sequence[int]], int]
"""Emitted tokens → how many of them the reply still takes."""


def take_all(emitted: Sequence[int]) -> int:
    """A reply that does not end here."""
    return len(emitted)


@dataclasses.dataclass
class Speculator:
    """Parts that fit together. `decoding.assemble` makes one; nothing else decides what fits.

    Args:
        feed: gives the drafter the states it asks for, and knows which it was given.
    """

    target: Model
    drafter: Drafter
    policy: TreePolicy
    rule: AcceptanceRule
    controller: Controller
    feed: StateFeed = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.feed = StateFeed(self.drafter)

    def start(self, history: Sequence[int], on_chunk: Callable[[int, int], None] | None = None) -> None:
        """Read the prompt up to its last token, which is the first root. Synchronises: its time is no round's."""
        self.feed.read(self.target, history[:-1], on_chunk)
        self.drafter.start(history)
        synchronize(self.target.device)

    def round(self, context: Context, cut: Cut = take_all) -> Round:
        """Do one round and append what it emits to the context's history.

        The bonus token is the next round's root: emitted, not read. So a round reads 1 + drafted nodes and emits
        accepted + 1 tokens, and plain decoding is the round whose tree is the root alone.

        A device is given its pass and goes on by itself; the pass is over when its first result reaches the host, which
        is in judging. So judging there counts as verifying, and nothing waits longer than it has to.
        """
        began = time.perf_counter()
        passes = self.drafter.passes
        context.wanted, context.wants_q = self.rule.wanted, self.rule.wants_q
        budget = self.controller.plan(context)
        context.passes = budget.passes
        planned = time.perf_counter()
        tree = self.policy.grow(self.drafter, context, budget)
        request = self._request(tree, budget)
        drafted = time.perf_counter()
        reading = self.target.read(tree, request=request)
        read = time.perf_counter()
        verdict = self.rule.judge(tree, reading, context)
        verified = read if self.target.device.type == "cpu" else time.perf_counter()
        verdict = verdict.cut(cut(verdict.emitted(tree)))
        self.target.keep(verdict.path)
        draft_s, verify_s = drafted - planned, verified - drafted
        round = Round(
            index=context.round,
            start=len(context.history),
            history=context.history,
            budget=budget,
            tree=tree,
            reading=reading,
            verdict=verdict,
            emitted=tuple(verdict.emitted(tree)),
            draft_passes=self.drafter.passes - passes,
            timings=Timings(draft_s, verify_s),
            riders=len(request.riders),
        )
        kept = time.perf_counter()
        self.feed.take(round)
        self.drafter.observe(round)
        learnt = time.perf_counter()
        timings = Timings(draft_s, verify_s, learnt - began - draft_s - verify_s, learnt - kept)
        self.controller.observe(dataclasses.replace(round, timings=timings))
        context.emit(round.emitted)
        other_s = time.perf_counter() - began - draft_s - verify_s
        return dataclasses.replace(round, timings=dataclasses.replace(timings, other_s=other_s))

    def _request(self, tree: TokenTree, budget: Budget) -> PassRequest:
        """What drafter, policy and rule together ask of the target's pass over this tree."""
        tap = self.drafter.text_tap
        layers = frozenset() if tap is None else tap.layers
        return PassRequest(
            taps=layers.union(self.drafter.taps, self.policy.taps, self.rule.taps),
            riders=tuple(self.drafter.riders(tree)) if budget.nodes else (),
            hooks=tuple(self.policy.hooks(tree)),
        )
