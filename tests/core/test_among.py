"""A draw for which only the likeliest tokens are looked at is the draw among all of them."""

from __future__ import annotations

import pytest
import torch
from test_draws import CUTS, logits

from specchat.core.among import draw_among
from specchat.core.best import best_tokens
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Sampling, law

KNOWN = 64


def both(sampling, seed, spread=4.0):
    """(drawn among all, drawn by looking at few, the few) for some rows."""
    rows, noise = logits(seed, spread=spread), Noise(seed)
    for place, (row, likeliest) in enumerate(zip(rows, best_tokens(rows, KNOWN)[1].tolist(), strict=True)):
        position = 50 + place
        expected = law(row, sampling).draw(noise, Stream.TARGET, position)
        yield expected, draw_among(row, likeliest, sampling, noise, position), likeliest


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.7])
def test_looking_at_few_gives_what_a_draw_among_all_gives(cut, temperature):
    sampling = Sampling(temperature, **CUTS[cut])
    told = 0
    for seed in range(20):
        for expected, found, _ in both(sampling, seed):
            assert found in (None, expected)
            told += found is not None
    assert told or (cut != "none" and temperature == 1.7) or cut == "all", "few are enough for most draws"


def test_a_token_that_wins_by_noise_alone_is_found():
    sampling = Sampling(1.0)
    drawn = [(expected, found, few) for seed in range(40) for expected, found, few in both(sampling, seed, spread=1.0)]
    assert all(expected == found for expected, found, _ in drawn)
    unlikely = sum(expected not in few for expected, _, few in drawn)
    assert 0.3 * len(drawn) < unlikely, "most of a flat law lies outside of the likeliest"


@pytest.mark.parametrize("threshold", [-9.0, -1.0, 0.0, 2.0, 6.0, 12.0, 40.0])
def test_no_token_whose_noise_exceeds_a_threshold_is_missing(threshold):
    count = 50_000
    for seed in range(3):
        noise = Noise(seed)
        exact = noise.gumbel(Stream.TARGET, 7, torch.arange(count)) > threshold
        found = noise.above(Stream.TARGET, 7, count, threshold)
        assert set(exact.nonzero()[:, 0].tolist()) <= set(found.tolist())
        assert len(found) <= int(exact.sum()) + 2, "and hardly one too many"
