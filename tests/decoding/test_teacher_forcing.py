"""Plain decoding forced along a text: the same logits by one row and by many, margins, ties, disturbances."""

from __future__ import annotations

import pytest
import torch

from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Sampling, law
from specchat.decoding.teacher_forcing import Judge, allowed_gap, chained, disturbance, first_difference, forced
from specchat.models.backends.scripted import ScriptedModel, random_says

SIZE = 12
SAYS = random_says(SIZE, seed=4)
PROMPT, REPLY = [1, 2, 3], [4, 0, 7, 7, 2, 9, 11]


def target() -> ScriptedModel:
    return ScriptedModel(SIZE, SAYS)


class Wobbly(ScriptedModel):
    """Rounds differently when a pass has more than one row: one token gains what the others lose."""

    def read(self, tree, *arguments, **named):
        reading = super().read(tree, *arguments, **named)
        if len(tree) > 1:
            reading.logits[:, 3] += 0.25
            reading.logits[:, 5] -= 0.25
        return reading


@pytest.mark.parametrize("rows", [1, 2, 3, 50])
def test_logits_are_those_that_decide_each_token(rows):
    found = list(chained(target(), PROMPT, REPLY, rows))
    assert len(found) == len(REPLY)
    for place, logits in enumerate(found):
        assert torch.equal(logits, SAYS([*PROMPT, *REPLY[:place]]))


def test_a_margin_is_the_difference_of_logits():
    logits = torch.tensor([0.0, 3.0, 1.0])
    margin = Judge(Sampling(), 0).margin([0], [2], 0, logits)
    assert (margin.token, margin.preferred, margin.gap) == (2, 1, 2.0)
    assert Judge(Sampling(), 0).margin([0], [1], 0, logits).gap == 0.0


def test_a_margin_when_sampling_uses_the_positions_own_noise():
    sampling, logits = Sampling(temperature=0.8), SAYS(PROMPT)
    drawn = law(logits, sampling).draw(Noise(5), Stream.TARGET, len(PROMPT))
    assert Judge(sampling, 5).margin(PROMPT, [drawn], 0, logits).gap == 0.0
    other = next(token for token in range(SIZE) if token != drawn)
    assert Judge(sampling, 5).margin(PROMPT, [other], 0, logits).gap > 0.0


def test_a_token_far_outside_the_truncation_has_no_finite_margin():
    logits = torch.tensor([9.0, 8.0, 1.0, 0.0, -3.0])
    assert Judge(Sampling(temperature=1.0, top_k=1), 0).margin([0], [4], 0, logits).gap == float("inf")


def test_penalties_see_the_text_so_far():
    logits = torch.tensor([2.0, 1.9, 0.0])
    judge = Judge(Sampling(presence_penalty=1.0), 0)
    assert judge.margin([2], [1], 0, logits).preferred == 0
    assert judge.margin([2], [0, 1], 1, logits).preferred == 1


def test_passes_that_agree_do_not_disturb():
    ones = [row.clone() for row in forced(target(), PROMPT, REPLY)]
    assert disturbance(ones, target(), PROMPT, REPLY, 4) == 0.0


def test_a_disturbance_is_what_two_logits_move_against_each_other():
    wobbly = Wobbly(SIZE, SAYS)
    ones = [row.clone() for row in forced(wobbly, PROMPT, REPLY)]
    assert disturbance(ones, wobbly, PROMPT, REPLY, 3) == pytest.approx(0.5, abs=1e-6)


def test_a_lower_temperature_allows_a_larger_gap_of_scores():
    assert allowed_gap(0.1, Sampling(temperature=0.5)) == pytest.approx(2 * allowed_gap(0.1, Sampling()))


def test_replies_differ_first_where_one_leaves_the_other_or_ends():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
