"""A draw for which only the likeliest tokens are looked at is the draw among all of them."""

from __future__ import annotations

import pytest
import torch
from test_draws import CUTS, PENALTIES, counts, logits, paths

from specchat.core.batched_draw import draw_batch
from specchat.core.draw_from_top_k import draw_from_top_k
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Counts, Sampling, law, penalise, penalised_order

KNOWN = 64


def likeliest_of(row):
    """The tokens with the highest logits, best first, of equals the lower number first: as the C head names them."""
    return row.sort(descending=True, stable=True).indices[:KNOWN]


def both(sampling, seed, rows):
    """(drawn among all, drawn by looking at few, the few) for some rows."""
    noise = Noise(seed)
    for place, row in enumerate(rows):
        position, likeliest = 50 + place, likeliest_of(row)
        expected = law(row, sampling).draw(noise, Stream.TARGET, position)
        yield expected, draw_from_top_k(row, likeliest, sampling, noise, position), likeliest.tolist()


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.7])
def test_looking_at_few_gives_what_a_draw_among_all_gives(cut, temperature):
    sampling = Sampling(temperature, **CUTS[cut])
    for seed in range(20):
        assert all(expected == found for expected, found, _ in both(sampling, seed, logits(seed)))


@pytest.mark.parametrize("cut", [{"top_k": 20}, {"top_p": 0.6}, {"top_k": 50, "top_p": 0.9}, {"min_p": 0.2}], ids=str)
def test_tokens_as_likely_as_the_last_survive_too_in_every_way_to_truncate(cut):
    """Logits in steps, as bfloat16 makes them: many tokens tie with the last one that top-k or top-p keeps."""
    sampling = Sampling(0.9, **cut)
    for seed in range(20):
        rows = logits(seed, spread=2.0).mul(2).round().div(2)
        shuffled = torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(seed))
        for row in rows:
            kept = law(row, sampling).all_ids()
            edge = row[kept].min()
            assert "top_k" not in cut or "top_p" in cut or edge == row.sort(descending=True).values[cut["top_k"] - 1]
            assert set(kept.tolist()) == set(torch.nonzero(row >= edge)[:, 0].tolist())
            assert set(shuffled[law(row[shuffled], sampling).all_ids()].tolist()) == set(kept.tolist())
        alone = [(expected, found) for expected, found, _ in both(sampling, seed, rows)]
        assert all(expected == found for expected, found in alone)
        drawn = draw_batch(rows, [()] * len(rows), range(50, 50 + len(rows)), sampling, Counts(), Noise(seed))
        assert all(token in (None, expected) for token, (expected, _) in zip(drawn, alone, strict=True))


def test_a_token_that_wins_by_noise_alone_is_found():
    sampling = Sampling(1.0)
    drawn = [
        (expected, found, few)
        for seed in range(40)
        for expected, found, few in both(sampling, seed, logits(seed, spread=1.0))
    ]
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


@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("cut", CUTS)
def test_the_likeliest_before_penalties_give_the_law_after_them(penalties, cut):
    sampling = Sampling(0.7, **CUTS[cut], **PENALTIES[penalties])
    for seed in range(20):
        for row, path in zip(logits(seed), paths(seed), strict=True):
            penalised = penalise(row, sampling, counts(), path)
            found = law(penalised, sampling, penalised_order(row, penalised, likeliest_of(row), sampling))
            expected = law(penalised, sampling)
            assert torch.equal(found.all_ids().sort().values, expected.all_ids().sort().values)
            torch.testing.assert_close(found.dense(len(row)), expected.dense(len(row)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("penalties", PENALTIES)
def test_what_penalties_leave_in_doubt_is_not_said_to_be_likeliest(penalties):
    sampling = Sampling(0.7, **PENALTIES[penalties])
    known = []
    for seed in range(20):
        for row, path in zip(logits(seed), paths(seed), strict=True):
            row[likeliest_of(row)[0]] = row[3] = row.max() + 4.0  # token 3 is in the reply
            penalised = penalise(row, sampling, counts(), path)
            found = penalised_order(row, penalised, likeliest_of(row), sampling)
            known.append(0 if found is None else len(found))
            if found is not None:
                assert torch.equal(found, penalised.sort(descending=True, stable=True).indices[: len(found)])
    assert max(known) == 0 if sampling.repetition_penalty < 1.0 else min(known) > KNOWN // 2
