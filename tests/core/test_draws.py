"""Tokens drawn together are those drawn one by one: the same law, the same noise, whatever tree they follow."""

from __future__ import annotations

import random

import pytest
import torch
from rows import each_row

from specchat.core.noise import Noise, Stream
from specchat.core.sampling import HEAD, Counts, Sampling, law, penalise
from specchat.core.target_draw import draw_batch, penalise_batch

V = 3000
PENALTIES = {
    "none": {},
    "repetition": {"repetition_penalty": 1.3},
    "all": {"repetition_penalty": 0.8, "presence_penalty": 0.7, "frequency_penalty": 0.4},
}
CUTS = {
    "none": {},
    "top-k": {"top_k": 40},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "all": {"top_k": 200, "top_p": 0.8, "min_p": 0.02},
    "top-k of all": {"top_k": V + 1, "top_p": 0.5},
}


def logits(seed, rows=7, spread=4.0):
    return spread * torch.randn(rows, V, generator=torch.Generator().manual_seed(seed))


def paths(seed, rows=7):
    generator = random.Random(seed)
    return [[generator.randrange(40) for _ in range(generator.randrange(5))] for _ in range(rows)]


def counts():
    return Counts(range(20, 60), [3] * 2 + [25] + [1700] * 5)


def one_by_one(rows, row_paths, positions, sampling, noise):
    seen = counts()
    return [
        law(penalise(row, sampling, seen, path), sampling).draw(noise, Stream.TARGET, position)
        for row, path, position in zip(rows, row_paths, positions, strict=True)
    ]


@each_row("penalties", PENALTIES)
@each_row("cut", CUTS)
@each_row("temperature", [0.0, 0.3, 0.8, 1.7])
def test_what_is_drawn_together_is_what_is_drawn_one_by_one(penalties, cut, temperature):
    sampling = Sampling(temperature, **PENALTIES[penalties], **CUTS[cut])
    for seed in range(6):
        rows, row_paths, noise = logits(seed), paths(seed), Noise(seed)
        positions = [100 + len(path) for path in row_paths]
        together = draw_batch(rows, row_paths, positions, sampling, counts(), noise)
        assert together == one_by_one(rows, row_paths, positions, sampling, noise)


@pytest.mark.parametrize("penalties", PENALTIES)
def test_penalties_are_the_same_to_the_last_bit(penalties):
    sampling = Sampling(1.0, **PENALTIES[penalties])
    rows, row_paths = logits(1), paths(1)
    alone = torch.stack([penalise(row, sampling, counts(), path) for row, path in zip(rows, row_paths, strict=True)])
    assert torch.equal(penalise_batch(rows, sampling, counts(), row_paths), alone)
    assert torch.equal(rows, logits(1)), "the raw logits stay as they are"


def test_another_position_or_path_draws_another_token():
    sampling = Sampling(1.0, frequency_penalty=2.0)
    rows = logits(0, rows=1, spread=0.5).expand(40, -1)
    same = draw_batch(rows, [[]] * 40, [5] * 40, sampling, counts(), Noise(0))
    assert len(set(same)) == 1
    assert len(set(draw_batch(rows, [[]] * 40, range(40), sampling, counts(), Noise(0)))) > 20
    shunned = draw_batch(rows[:1], [[same[0]] * 50], [5], sampling, counts(), Noise(0))
    assert shunned != same[:1]


def test_a_nucleus_too_wide_to_be_found_at_once_is_left_to_be_drawn_alone():
    flat, sharp = torch.zeros(V), logits(0, rows=1)[0]
    sampling = Sampling(1.0, top_p=0.9)
    assert HEAD < 0.9 * V
    drawn = draw_batch(torch.stack([flat, sharp]), [[], []], [3, 4], sampling, counts(), Noise(1))
    assert drawn[0] is None
    assert drawn[1:] == one_by_one([sharp], [[]], [4], sampling, Noise(1))
