"""The round in four steps: plan, propose, submit, settle. If you read one file, read this one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specchat.core.budget import Budget
from specchat.core.constraint import Refused
from specchat.core.context import Context
from specchat.core.device_copy import synchronize
from specchat.core.reading import Reading
from specchat.core.record import record
from specchat.core.request import EVERYTHING, FIRST, HeadNeeds, Judging, PassRequest
from specchat.core.round import JointPass, Round, RoundTimings, Verdict
from specchat.core.seams import AcceptanceRule, Controller, Drafter, Model, OnChunk, TreePolicy
from specchat.core.tree import ROOT, TokenTree
from specchat.decoding.layer_lens import lens_taps
from specchat.decoding.state_feed import StateFeed, wants_states
from specchat.drafters.grammar import fitted, with_forced_room

Cut = Callable[[Sequence[int]], int]
"""Emitted tokens → how many of them the reply still takes."""


def take_all(emitted: Sequence[int]) -> int:
    """A reply that does not end here."""
    return len(emitted)


_NO_LAYERS = frozenset[int]()


@record
class Plan:
    """How hard a round tries, and the seconds that planning took."""

    budget: Budget
    took_s: float = 0.0


@record
class Draft:
    """The draft of a round: a frozen tree for the target to read, and what else is asked of the pass over it.

    Args:
        passes: forward passes of draft models that it took.
        refused: guesses that a constraint forbids, which got no place.
    """

    plan: Plan
    tree: TokenTree
    request: PassRequest
    passes: int = 0
    took_s: float = 0.0
    refused: tuple[Refused, ...] = ()


@record
class Submitted:
    """A draft that the target was given. A device may still be computing it; reading its values waits.

    Args:
        given, returned: on the clock, when the target was given it and when the call came back.
        joint: the pass that read it with trees of other texts; None where it read nothing else.
    """

    draft: Draft
    reading: Reading
    given: float
    returned: float
    joint: JointPass | None = None


@dataclass
class Speculator:
    """Parts that fit together. `decoding.assemble` makes one; nothing else decides what fits.

    A round is four steps in a row. They share nothing but their arguments and the parts: `plan` asks the controller,
    `propose` drafter and policy, `submit` the target alone, `settle` all of them. `decoding.overlap` drafts for round
    n + 1 while round n is submitted.

    Args:
        feed: gives the drafter the states it asks for, and knows which it was given.
    """

    target: Model
    drafter: Drafter
    policy: TreePolicy
    rule: AcceptanceRule
    controller: Controller
    feed: StateFeed = field(init=False)
    _drafter_needs: HeadNeeds = field(init=False)
    _on_host: bool = field(init=False)

    def __post_init__(self) -> None:
        self.feed = StateFeed(self.drafter)
        self._drafter_needs = self.drafter.needs
        self._on_host = self.target.device.type == "cpu"

    def start(self, history: Sequence[int], on_chunk: OnChunk = None) -> None:
        """Read the prompt up to its last token, which is the first root. Synchronises: its time counts in no round."""
        self.feed.read(self.target, history[:-1], on_chunk)
        self.drafter.start(history)
        self._drafter_needs = self.drafter.needs
        synchronize(self.target.device)

    def round(self, context: Context, cut: Cut = take_all) -> Round:
        """Do one round and append what it emits to the context's history.

        The bonus token is the next round's root: emitted, not read. So a round reads 1 + drafted nodes and emits
        accepted + 1 tokens, and plain decoding is the round whose tree is the root alone.
        """
        plan = self.plan(context)
        draft = self.propose(context, plan)
        submitted = self.submit(draft)
        return self.settle(submitted, context, cut)

    def plan(self, context: Context) -> Plan:
        """How hard to try; the context then knows what rule and budget ask of drafters."""
        began = time.perf_counter()
        context.wanted, context.wants_q = self.rule.wanted, self.rule.wants_q
        budget = self.controller.plan(context)
        context.budget = budget
        return Plan(budget, time.perf_counter() - began)

    def propose(self, context: Context, plan: Plan) -> Draft:
        """A tree that goes on from the context's history, within the budget."""
        began, passes = time.perf_counter(), self.drafter.passes
        constraint, budget = context.constraint, plan.budget
        if constraint is not None:
            budget = with_forced_room(budget, constraint)
        tree = self._grow(context, budget)
        refused: tuple[Refused, ...] = ()
        if constraint is not None:
            tree = fitted(tree, constraint, context, budget)
            refused = constraint.refused(tree)
        judging = self.rule.judging(context)
        judge_needs = FIRST if judging is not None else self.rule.needs(context.sampling)
        needs = judge_needs | self._drafter_needs | context.shown
        shown = lens_taps(self.target) if context.lens else _NO_LAYERS
        request = self.request(tree, plan.budget, needs, shown, judging)
        return Draft(plan, tree, request, self.drafter.passes - passes, time.perf_counter() - began, refused)

    def _grow(self, context: Context, budget: Budget) -> TokenTree:
        return self.policy.grow(self.drafter, context, budget)

    def request(
        self,
        tree: TokenTree,
        budget: Budget,
        needs: HeadNeeds = EVERYTHING,
        shown: frozenset[int] = _NO_LAYERS,
        judging: Judging | None = None,
    ) -> PassRequest:
        """The request of drafter, policy and rule together for the target's pass over this tree; `needs` of its head.

        Args:
            shown: layers whose states are wanted besides.
        """
        tap = self.drafter.hidden_state_sink
        layers = tap.layers if tap is not None and wants_states(tap, budget) else frozenset()
        drafting, running = budget.nodes > 0, budget.nodes > 0 and budget.passes
        others = [*(self.drafter.taps if running else ()), *self.policy.taps, *self.rule.taps, *shown]
        taps = layers.union(others) if others else layers
        extra_rows = tuple(self.drafter.extra_rows(tree)) if drafting else ()
        hooks = tuple(self.policy.hooks(tree))
        return PassRequest(taps, extra_rows, hooks, needs=needs, judging=judging)

    def submit(self, draft: Draft) -> Submitted:
        """Give the target its pass. A device goes on by itself; on the host the pass is over when this returns."""
        given = time.perf_counter()
        reading = self.target.read(draft.tree, request=draft.request)
        return Submitted(draft, reading, given, time.perf_counter())

    def settle(self, submitted: Submitted, context: Context, cut: Cut = take_all) -> Round:
        """Judge the tree, keep what was accepted, let the parts learn, and append what was emitted to the history.

        On a device the pass is over when its first result reaches the host, which is in judging. So judging there
        counts as verifying, and nothing waits longer than it has to.
        """
        began = time.perf_counter()
        draft, reading = submitted.draft, submitted.reading
        verdict = self._judge(draft.tree, context.constrained(draft.tree, reading), context)
        judged = began if self._on_host else time.perf_counter()
        verify_s = (submitted.returned if self._on_host else judged) - submitted.given
        emitted = verdict.emitted
        count = cut(emitted)
        if count < len(emitted):
            verdict, emitted = verdict.cut(count), emitted[:count]
        self.target.keep(verdict.path)
        refused, constraint = draft.refused, context.constraint
        if constraint is not None and context.shown.likeliest:
            constraint.note_likeliest(draft.tree, reading, (ROOT, *verdict.path))
            refused = constraint.refused(draft.tree)
        round = Round(
            index=context.round,
            start=len(context.history),
            history=context.history,
            budget=draft.plan.budget,
            tree=draft.tree,
            reading=reading,
            verdict=verdict,
            emitted=emitted,
            draft_passes=draft.passes,
            timings=RoundTimings(
                draft.took_s,
                verify_s,
                joint=submitted.joint,
                there_s=None if reading.elsewhere is None else reading.elsewhere.took_s,
            ),
            extra_rows=len(draft.request.extra_rows),
            refused=refused,
        )
        self._learn(round, draft.plan.took_s, judged)
        context.emit(round.emitted)
        round.timings.other_s = time.perf_counter() - judged + draft.plan.took_s
        return round

    def _judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        return self.rule.judge(tree, reading, context)

    def _learn(self, round: Round, plan_s: float, judged: float) -> None:
        """Show the round to drafter and policy, and then, with what that took, to the controller."""
        kept = time.perf_counter()
        self.feed.take(round)
        self.drafter.observe(round)
        self.policy.observe(round)
        learnt = time.perf_counter()
        round.timings.other_s, round.timings.learn_s = learnt - judged + plan_s, learnt - kept
        self.controller.observe(round)
        round.timings.learn_s += time.perf_counter() - learnt + plan_s
