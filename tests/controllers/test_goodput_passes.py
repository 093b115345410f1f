"""The goodput controller and the passes of a draft model: known costs, what a pass must gain, rows apart from it."""

import dataclasses
import math

import pytest
import torch
from contracts.kit import scripted_draft, scripted_target
from goodput_rounds import a_round, chain, context, controller, costs, judged

from specchat.core.round import RoundTimings
from specchat.decoding.assemble import assemble
from specchat.settings import Settings

FLAT = costs(per_row=0.02)
"""A pass of the target takes 1, and each further row hardly anything: weights are read once for all of them."""


def drafting(pass_s, per_row=0.02, memory=32):
    """A controller that knows what a pass of the draft model takes."""
    given = dataclasses.replace(costs(per_row=per_row), draft=((1, pass_s), (4, pass_s)))
    return controller(given, nodes=8, depth=8, memory=memory)


def test_what_a_pass_of_the_draft_model_takes_is_known_before_the_first_round():
    plans = [drafting(pass_s).plan(context()) for pass_s in (0.05, 0.2, 0.4)]
    paid = [plan.pass_price for plan in plans]
    assert paid == sorted(paid)
    assert paid[0] < 0.15 < 0.6 < paid[2], "over the acceptance rate that is assumed"
    assert all(plan.depth == 8 for plan in plans), "where drafting ends is decided by what is drafted"


def test_a_pass_is_paid_for_once_and_not_by_each_of_its_guesses():
    def plan(draft_s):
        subject = drafting(draft_s)
        for _ in range(40):
            subject.observe(a_round(4, 3, draft_s=4 * draft_s, passes=4, logprob=math.log(0.8), given=FLAT))
        return subject.plan(context(1))

    cheap, dear = plan(0.05), plan(0.3)
    assert dear.pass_price > 2 * cheap.pass_price
    assert dear.floor <= cheap.floor < 0.1, "a guess that is there needs only be worth its row"


@pytest.mark.parametrize(
    ("pass_s", "row_s", "promised"),
    [(0.25, 0.02, 0.8), (0.1, 0.1, 0.8), (0.1, 0.1, 0.95)],
    ids=["dear passes", "dear rows", "boasting"],
)
def test_a_node_gets_a_pass_where_that_is_expected_to_gain_more_than_its_time(pass_s, row_s, promised):
    """Chains of 4 of which each guess stands 4 times in 5: the price is what a pass and its row take, by the formula
    and by the clock, over what a node that the drafter promises is worth here."""
    subject, given = drafting(pass_s, row_s, memory=1024), costs(per_row=row_s)
    generator = torch.Generator().manual_seed(2)
    tokens = rounds = 0
    for _ in range(1600):
        accepted = 0
        while accepted < 4 and float(torch.rand((), generator=generator)) < 0.8:
            accepted += 1
        tokens, rounds = tokens + accepted + 1, rounds + 1
        subject.observe(a_round(4, accepted, draft_s=4 * pass_s, passes=4, logprob=math.log(promised), given=given))
    rate = tokens / rounds / (given.verify_s(5) + 4 * pass_s)
    calibration = (tokens - rounds) / rounds / sum(promised**depth for depth in range(1, 5))
    price = (pass_s + row_s) * rate / (0.8 * calibration)
    assert subject.plan(context(1)).pass_price == pytest.approx(min(1.0, price), rel=0.1)


def test_levels_that_were_looked_up_do_not_make_passes_look_cheap():
    subject = drafting(0.1)
    for index in range(240):
        passes = (0, 1, 3)[index % 3]
        subject.observe(a_round(7, 4, draft_s=0.3 * passes, passes=passes, logprob=math.log(0.7), given=FLAT))
    assert subject.statistics.draft.step_s == pytest.approx(0.3, rel=0.05)


def test_a_drafter_whose_guesses_have_no_probabilities_gets_a_depth_instead():
    subject = drafting(0.2)
    for _ in range(60):
        subject.observe(a_round(8, 3, draft_s=1.6, passes=8, given=FLAT))
    plan = subject.plan(context(1))
    assert plan.pass_price == 0.0
    assert plan.depth == subject.best_depth()[0] < 8


def test_drafting_that_pays_is_not_given_up_for_a_bad_beginning():
    subject = drafting(0.2)
    for accepted in (0, 0, 1, 2):
        subject.observe(a_round(3, accepted, draft_s=0.6, passes=3, logprob=math.log(0.8), given=FLAT))
    plan = subject.plan(context(5))
    assert plan.passes
    assert plan.pass_price < 1.0


@dataclasses.dataclass
class ScriptedClock:
    """Replies with a draft model that is sure of a word or not, which is how often it is right.

    Attributes:
        seconds, tokens: of all rounds so far.
    """

    pass_s: float
    generator: torch.Generator
    seconds: float = 0.0
    tokens: int = 0

    def draw(self):
        return float(torch.rand((), generator=self.generator))

    def round(self, plan, given):
        """One round of a chain: as deep as the plan says, or as long as a pass is worth its price."""
        worth, depth, passes, accepted, stands = 1.0, 0, 0, 0, True
        while plan.nodes and depth < plan.depth and worth >= plan.pass_price:
            chance = 0.95 if self.draw() < 0.7 else 0.3
            passes += 1
            stands = stands and self.draw() < chance
            if worth * chance < plan.price(depth + 1):
                break
            worth, depth, accepted = worth * chance, depth + 1, accepted + stands
        verify_s, draft_s = given.verify_s(1 + depth), passes * self.pass_s
        self.seconds, self.tokens = self.seconds + verify_s + draft_s, self.tokens + accepted + 1
        logprob = math.log(worth) / depth if depth else None
        done = judged(chain(depth, logprob), tuple(range(1, accepted + 1)))
        return dataclasses.replace(done, budget=plan, draft_passes=passes, timings=RoundTimings(draft_s, verify_s, 0.0))


def tokens_a_second(pass_s, make_controller, replies=12, reply_tokens=48):
    """Over short replies, each with a controller that has learnt nothing yet; a plain token takes 1."""
    clock, given = ScriptedClock(pass_s, torch.Generator().manual_seed(3)), costs(per_row=0.02)
    for reply in range(1, replies + 1):
        subject, index = make_controller(), 0
        while clock.tokens < reply * reply_tokens:
            done = clock.round(subject.plan(context(index)), given)
            subject.observe(done)
            index += 1
    return clock.tokens / clock.seconds


class Fixed:
    """A chain of one depth in every round."""

    def __init__(self, depth):
        self.plan_made = dataclasses.replace(controller().plan(context()), depth=depth, nodes=8, prices=())

    def plan(self, context):
        return self.plan_made

    def observe(self, round):
        pass


@pytest.mark.parametrize("pass_s", [0.1, 0.2, 0.35])
def test_from_the_first_reply_on_it_is_as_quick_as_the_best_fixed_depth(pass_s):
    fixed = max(tokens_a_second(pass_s, lambda d=depth: Fixed(d)) for depth in range(1, 9))
    assert fixed > 1.0
    assert tokens_a_second(pass_s, lambda: drafting(pass_s)) >= fixed


@pytest.mark.parametrize(("drafter", "priced"), [("draft_model", True), ("fuse", True), ("suffix", False)])
def test_passes_have_a_price_where_the_drafter_runs_the_draft_model(drafter, priced):
    settings = Settings(drafter=drafter, controller="goodput", nodes=8, depth=8)
    known = dataclasses.replace(FLAT, draft=((1, 0.2), (4, 0.2)))
    speculator = assemble(settings, scripted_target(), scripted_draft(), costs=known)
    assert (speculator.controller.plan(context()).pass_price > 0.0) == priced
