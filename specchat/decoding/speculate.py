"""The round: plan, draft, verify, judge, keep, learn. If you read one file, read this one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from specchat.core.round import Round, Timings
from specchat.core.seams import AcceptanceRule, Context, Controller, Drafter, Model, OnLayer, TreePolicy
from specchat.core.transfer import wait_for
from specchat.core.tree import TokenTree
from specchat.decoding.pruning import EarlyPruning

Cut = Callable[[Sequence[int]], int]
"""Emitted tokens → how many of them the reply still takes."""


def take_all(emitted: Sequence[int]) -> int:
    """A reply that does not end here."""
    return len(emitted)


@dataclasses.dataclass
class Speculator:
    """Parts that fit together. `decoding.assemble` makes one; nothing else decides what fits."""

    target: Model
    drafter: Drafter
    policy: TreePolicy
    rule: AcceptanceRule
    controller: Controller
    on_layer: OnLayer | None = None
    pruning: EarlyPruning | None = None

    def start(self, history: Sequence[int], on_chunk: Callable[[int, int], None] | None = None) -> None:
        """Read the prompt up to its last token, which is the first root. Synchronises: its time is no round's."""
        self.target.prefill(history[:-1], on_chunk)
        self.drafter.start(history)
        wait_for(self.target.device)

    def round(self, context: Context, cut: Cut = take_all) -> Round:
        """Do one round and append what it emits to the context's history.

        The bonus token is the next round's root: emitted, not read. So a round reads 1 + drafted nodes and emits
        accepted + 1 tokens, and plain decoding is the round whose tree is the root alone.

        A device is given its pass and goes on by itself; the pass is over when its first result reaches the host, which
        is in judging. So judging there counts as verifying, and nothing waits longer than it has to.
        """
        began = time.perf_counter()
        passes = self.drafter.passes
        budget = self.controller.plan(context)
        context.passes = budget.passes
        planned = time.perf_counter()
        tree = self.policy.grow(self.drafter, context, budget)
        riders = self.drafter.riders(tree)
        drafted = time.perf_counter()
        reading = self.target.read(tree, riders=riders, taps=self.drafter.taps, on_layer=self._watching(tree))
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
            timings=Timings(draft_s, verify_s, time.perf_counter() - began - draft_s - verify_s),
        )
        self.drafter.observe(round)
        self.controller.observe(round)
        context.emit(round.emitted)
        other_s = time.perf_counter() - began - draft_s - verify_s
        return dataclasses.replace(round, timings=Timings(draft_s, verify_s, other_s))

    def _watching(self, tree: TokenTree) -> OnLayer | None:
        """Who looks into the target's pass: whoever was named, or early pruning."""
        return self.on_layer if self.pruning is None else self.pruning.watching(tree)
