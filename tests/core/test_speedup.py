"""The speed-up of a reply by its own plain rounds: the arithmetic, its interval, and what it refuses to say."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from specchat.core.speedup import FEWEST_PLAIN_ROUNDS, RoundIntervals, Speedup

PLAIN_S, DRAFTING_S = 0.010, 0.014
TELLING_S = 0.001
"""What a round is told in: the gap is longer than the round itself, for every kind of round."""

_REPLIES = 160

Load = Callable[[int], float]


def steady(round: int) -> float:
    return 1.0


def gaps_of(
    rounds: int,
    plain_at: Callable[[int], bool] = lambda round: round % 24 == 12,
    tokens: int = 3,
    load: Load = steady,
    noise: Callable[[], float] = lambda: 1.0,
) -> tuple[RoundIntervals, float]:
    """A reply's gaps, and the truth: what its tokens would have taken plainly, over what it took."""
    gaps, now_s, plain_s = RoundIntervals(), 0.5, 0.0
    for round in range(rounds):
        plain = plain_at(round)
        own_s = (PLAIN_S if plain else DRAFTING_S) * load(round) * noise()
        emitted = 1 if plain else tokens
        gaps.add(now_s + own_s, own_s, emitted, 0 if plain else 4, plain)
        now_s += own_s + TELLING_S
        plain_s += emitted * (PLAIN_S * load(round) + TELLING_S)
    gaps.end(now_s)
    return gaps, plain_s / (now_s - 0.5)


def test_it_is_tokens_times_the_mean_gap_of_plain_rounds_over_all_gaps():
    gaps, _ = gaps_of(240)
    tokens, seconds = 10 * 1 + 230 * 3, 10 * (PLAIN_S + TELLING_S) + 230 * (DRAFTING_S + TELLING_S)
    assert gaps.speedup.value == pytest.approx(tokens * (PLAIN_S + TELLING_S) / seconds)
    assert gaps.speedup.plain_rounds == 10


def test_what_telling_takes_is_in_both_clocks():
    gaps, truth = gaps_of(240)
    assert gaps.seconds == pytest.approx(10 * PLAIN_S + 230 * DRAFTING_S + 240 * TELLING_S)
    assert gaps.speedup.value == pytest.approx(truth)


def test_what_learning_from_a_plain_round_takes_is_the_replys_time_and_not_plain_decodings():
    learn_s = 0.004
    gaps, now_s = RoundIntervals(), 0.0
    for round in range(240):
        plain = round % 24 == 12
        own_s = (PLAIN_S if plain else DRAFTING_S) + learn_s
        now_s += own_s
        gaps.add(now_s, own_s, 1 if plain else 3, 0 if plain else 4, plain, learn_s)
    gaps.end(now_s)
    assert gaps.seconds == pytest.approx(now_s)
    assert gaps.speedup.value == pytest.approx((10 + 230 * 3) * PLAIN_S / now_s)


def test_a_gap_ends_where_the_next_round_begins_and_the_last_one_with_the_reply():
    gaps = RoundIntervals()
    gaps.add(1.0, 0.2, 1, 0, True)
    assert gaps.seconds == 0.0
    gaps.add(1.5, 0.3, 2, 4, False)
    assert gaps.seconds == pytest.approx(0.4)
    gaps.end(2.0)
    assert gaps.seconds == pytest.approx(1.2)


def test_fewer_than_eight_plain_rounds_say_nothing():
    every = 240 // FEWEST_PLAIN_ROUNDS
    assert gaps_of(240, lambda round: round % every == 0)[0].speedup is not None
    assert gaps_of(239 - every, lambda round: round % every == 0)[0].speedup is None
    assert RoundIntervals().speedup is None


def test_plain_decoding_claims_no_speed_up():
    assert gaps_of(240, lambda round: True)[0].speedup is None


def test_a_ratio_above_the_tokens_of_a_round_is_withheld():
    def only_plain_is_slow(round: int) -> float:
        return 9.0 if round % 24 == 12 else 1.0

    gaps, _ = gaps_of(240, load=only_plain_is_slow)
    assert gaps.plain_rounds == 10
    assert gaps.speedup is None


def test_where_a_controller_decoded_plainly_does_not_lead_the_mean():
    """The machine is busy for a third of the reply, in which the controller decodes plainly."""

    def busy(round: int) -> float:
        return 3.0 if round < 100 else 1.0

    gaps, truth = gaps_of(300, lambda round: round < 100 or round % 24 == 12, load=busy)
    assert gaps.speedup.value == pytest.approx(truth, rel=0.03)


def test_a_context_that_grows_is_followed():
    gaps, truth = gaps_of(300, lambda round: round < 100 or round % 24 == 12, load=lambda round: 1 + round / 300)
    assert gaps.speedup.value == pytest.approx(truth, rel=0.03)


def test_more_plain_rounds_know_more():
    def half(every: int) -> float:
        chance = random.Random(3)
        gaps, _ = gaps_of(960, lambda round: round % every == 3, noise=lambda: chance.lognormvariate(0, 0.2))
        return gaps.speedup.high - gaps.speedup.low

    assert half(8) < 0.75 * half(60)


def coverage(rounds: int, spread: float, load: Callable[[random.Random, int], Load]) -> float:
    """How often the truth lies in the interval, over replies whose gaps scatter."""
    chance = random.Random(5)
    mean = 2.718281828 ** (spread**2 / 2)  # of the noise
    held = 0
    for _ in range(_REPLIES):
        place = [chance.randrange(24) for _ in range(rounds // 24 + 1)]
        gaps, truth = gaps_of(
            rounds,
            lambda round, place=place: round % 24 == place[round // 24],
            load=load(chance, rounds),
            noise=lambda: chance.lognormvariate(0, spread) / mean,
        )
        found = gaps.speedup
        held += found is None or found.low <= truth <= found.high
    return held / _REPLIES


def always_the_same(chance: random.Random, rounds: int) -> Load:
    return steady


def ever_slower(chance: random.Random, rounds: int) -> Load:
    return lambda round: 1 + 2 * round / rounds


def busy_once(chance: random.Random, rounds: int) -> Load:
    begin, length = chance.randrange(rounds), chance.randint(1, rounds)
    return lambda round: 3.0 if begin <= round < begin + length else 1.0


def busy_at_times(chance: random.Random, rounds: int) -> Load:
    busy = {b + i for b in chance.sample(range(rounds), 8) for i in range(chance.randint(1, 30))}
    return lambda round: 3.0 if round in busy else 1.0


@pytest.mark.parametrize("load", [always_the_same, ever_slower, busy_once, busy_at_times])
@pytest.mark.parametrize("rounds", [216, 720])
@pytest.mark.parametrize("spread", [0.02, 0.2])
def test_the_interval_holds_the_truth_nine_times_of_ten_or_more(load, rounds, spread):
    assert coverage(rounds, spread, load) >= 0.88


def test_the_interval_is_no_wider_than_it_must_be():
    """So wide that it always held the truth it would say nothing."""
    assert coverage(480, 0.3, always_the_same) <= 0.99


def test_the_interval_reaches_a_twentieth_to_each_side_however_steady_the_rounds_were():
    found = gaps_of(240)[0].speedup
    assert found.value - found.low == pytest.approx(0.05 * found.value)
    assert found.high - found.value == pytest.approx(0.05 * found.value)


@pytest.mark.parametrize(
    ("speedup", "text"),
    [
        (Speedup(1.52, 1.4, 1.64, 32), "1.5× ± 0.1"),
        (Speedup(1.523, 1.5, 1.546, 90), "1.52× ± 0.02"),
        (Speedup(2.0, 2.0, 2.0, 9), "2.00× ± 0.01"),
        (Speedup(1.9, 1.2, 2.0, 9), "1.9× ± 0.7"),
    ],
)
def test_it_is_written_with_what_it_is_sure_of(speedup, text):
    assert speedup.text == text
