"""The token that C draws from a row of logits is the one that torch draws from the row's law."""

from __future__ import annotations

import math

import pytest
import torch
from rows import each_row
from test_draws import CUTS, PENALTIES, counts, logits, paths

from specchat.core import target_draw
from specchat.core.noise import Noise, Stream
from specchat.core.reading import RowInMemory
from specchat.core.sampling import Counts, Sampling, law, penalise
from specchat.core.target_draw import NativeDraw, draw_batch, draw_token, native_draw, takes

needs_native = pytest.mark.skipif(native_draw(8) is None, reason="there is no C compiler here")
NAN, INFINITY = math.nan, math.inf


def from_law(row, sampling, noise, position, said=None, path=()):
    """The draw as `draw_token` defines it, by torch."""
    return law(penalise(row, sampling, said or Counts(), path), sampling).draw(noise, Stream.TARGET, position)


def in_c(row, sampling, noise, position, said=None, path=()):
    native = native_draw(row.numel())
    assert native is not None
    return native.draw(row.data_ptr(), sampling, said or Counts(), path, noise.key(Stream.TARGET, position))


def assert_same(rows, sampling, noise, said=None, row_paths=None):
    for place, row in enumerate(rows):
        about = sampling, noise, 50 + place, said, () if row_paths is None else row_paths[place]
        assert in_c(row, *about) == from_law(row, *about)


@needs_native
@each_row("penalties", PENALTIES)
@each_row("cut", CUTS)
@each_row("temperature", [0.0, 0.3, 0.8, 1.7])
def test_c_draws_what_the_law_draws(penalties, cut, temperature):
    sampling = Sampling(temperature, **PENALTIES[penalties], **CUTS[cut])
    for seed in range(4):
        assert_same(logits(seed), sampling, Noise(seed), counts(), paths(seed))


@needs_native
@each_row("vocab_size", [1, 2, 7, 8, 9, 63, 64, 65, 1025, 300_000])
@each_row("cut", CUTS)
def test_a_vocabulary_of_any_size_is_drawn_from(vocab_size, cut):
    for seed in range(2):
        row = 3.0 * torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed))
        assert_same([row], Sampling(0.8, **CUTS[cut]), Noise(seed))


@needs_native
@pytest.mark.parametrize("cut", [{"top_k": 20}, {"top_p": 0.6}, {"top_k": 50, "top_p": 0.9}, {"min_p": 0.2}], ids=str)
def test_tokens_as_likely_as_the_last_survive_too_in_every_way_to_truncate(cut):
    """Logits in steps, as bfloat16 makes them: many tokens tie with the last one that top-k or top-p keeps."""
    sampling = Sampling(0.9, **cut)
    for seed in range(6):
        rows = logits(seed, spread=2.0).mul(2).round().div(2)
        shuffled = torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(seed))
        for row in rows:
            kept = law(row, sampling).all_ids()
            edge = row[kept].min()
            assert "top_k" not in cut or "top_p" in cut or edge == row.sort(descending=True).values[cut["top_k"] - 1]
            assert set(kept.tolist()) == set(torch.nonzero(row >= edge)[:, 0].tolist())
            assert set(shuffled[law(row[shuffled], sampling).all_ids()].tolist()) == set(kept.tolist())
        assert_same(rows, sampling, Noise(seed))
        alone = [from_law(row, sampling, Noise(seed), 50 + place) for place, row in enumerate(rows)]
        drawn = draw_batch(rows, [()] * len(rows), range(50, 50 + len(rows)), sampling, Counts(), Noise(seed))
        assert all(token in (None, expected) for token, expected in zip(drawn, alone, strict=True))


@needs_native
@each_row("cut", CUTS)
@each_row("row", ["flat", "one alone", "two values", "most excluded", "far apart", "both zeros"])
def test_strange_rows_are_drawn_from_as_the_law_says(row, cut):
    token = torch.arange(3000)
    rows = {
        "flat": torch.zeros(3000),
        "one alone": torch.where(token == 2999, 0.0, -INFINITY),
        "two values": torch.where(token % 7 == 0, 1.0, 0.0),
        "most excluded": torch.where(token % 100 == 3, token / 1000.0, -INFINITY),
        "far apart": -1e30 * (token - 1500).abs().float(),
        "both zeros": torch.where(token % 2 == 0, 0.0, -0.0),
    }
    for seed in range(10):
        assert_same([rows[row]], Sampling(0.7, **CUTS[cut]), Noise(seed))


@needs_native
@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 1.8}, {"presence_penalty": 3.0}, {"frequency_penalty": 0.9}]
)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_penalties_on_the_best_tokens_of_text_and_path_count(penalty, temperature):
    sampling, moved = Sampling(temperature, top_p=0.9, **penalty), 0
    for seed in range(12):
        rows = logits(seed, spread=2.0)
        for place, row in enumerate(rows):
            first, second, third = row.topk(3).indices.tolist()
            said, path = Counts([5, second], [first, first]), [third, first, third]
            assert_same([row], sampling, Noise(place), said, [path])
            moved += in_c(row, sampling, Noise(place), 50, said, path) != in_c(row, sampling, Noise(place), 50)
    assert moved > 20


@needs_native
@pytest.mark.parametrize(
    ("top_p", "allowed"), [(0.5, (1, 2)), (0.51, (2,)), (0.74, (2,)), (0.75, (2, 4)), (0.76, (4,)), (1e-9, (1,))]
)
def test_at_the_edge_of_the_nucleus_no_more_than_rounding_decides(top_p, allowed):
    """One half, a quarter, and two eighths, which tie: where top-p is a sum of them, rounding may add the next."""
    row = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    drawn = {in_c(row, Sampling(1.0, top_p=top_p), Noise(0), position) for position in range(400)}
    assert drawn in [set(range(count)) for count in allowed]


@needs_native
@pytest.mark.parametrize("top_k", [1, 3, 20])
def test_no_token_beyond_top_k_is_drawn_and_every_other_one_is(top_k):
    row = torch.arange(300).flip(0) / 1000.0
    drawn = {in_c(row, Sampling(1.0, top_k=top_k), Noise(0), position) for position in range(400)}
    assert drawn == set(range(top_k))


@needs_native
def test_a_token_that_wins_by_noise_alone_is_found():
    sampling, unlikely, count = Sampling(1.0), 0, 0
    for seed in range(40):
        rows = logits(seed, spread=1.0)
        assert_same(rows, sampling, Noise(seed))
        unlikely += sum(in_c(row, sampling, Noise(seed), 50) not in row.topk(64).indices for row in rows)
        count += len(rows)
    assert unlikely > 0.3 * count, "most of a flat law lies outside of the likeliest"


@needs_native
@pytest.mark.parametrize("values", [[0.0, NAN, 1.0], [1.0, INFINITY], [-INFINITY, -INFINITY], [NAN]], ids=str)
@pytest.mark.parametrize("cut", CUTS)
def test_logits_that_are_no_finite_numbers_are_left_to_torch(values, cut):
    assert in_c(torch.tensor(values), Sampling(0.7, **CUTS[cut]), Noise(0), 3) is None


@needs_native
def test_a_token_without_a_logit_is_left_to_torch_which_refuses_it():
    row, sampling = torch.zeros(10), Sampling(0.7, repetition_penalty=1.1)
    for token in (10, -11):
        assert in_c(row, sampling, Noise(0), 3, Counts([token])) is None
        assert in_c(row, sampling, Noise(0), 3, Counts(), [token]) is None
        with pytest.raises(IndexError):
            draw_token(row, sampling, Noise(0), 3, Counts([token]))


@needs_native
@pytest.mark.parametrize("cut", CUTS)
def test_where_a_row_lies_in_memory_changes_no_draw_and_the_row_stays_as_it_is(cut):
    row, sampling = logits(0)[0], Sampling(0.8, repetition_penalty=1.3, **CUTS[cut])
    room = torch.empty(len(row) + 16)
    expected = in_c(row, sampling, Noise(3), 7, counts())
    for start in range(16):
        there = room[start : start + len(row)]
        there.copy_(row)
        assert in_c(there, sampling, Noise(3), 7, counts()) == expected
        assert torch.equal(there, row)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "by torch"])
def test_a_row_that_is_no_tensor_is_drawn_from_as_its_tensor_is(compiled, monkeypatch):
    made = []

    def in_memory(row):
        return RowInMemory(row.data_ptr(), len(row), lambda: made.append(row) or row)

    if not compiled:
        monkeypatch.setattr(target_draw, "native_draw", lambda vocab_size: None)
    sampling, path = Sampling(0.8, top_p=0.9, repetition_penalty=1.3), [4, 4]
    for place, row in enumerate(logits(0)):
        about = sampling, Noise(3), place, counts(), path
        assert draw_token(in_memory(row), *about) == from_law(row, *about)
    assert len(made) == (0 if compiled and native_draw(8) is not None else len(logits(0)))
    made.clear()
    with pytest.raises(IndexError):  # what C refuses torch refuses
        draw_token(in_memory(row), sampling, Noise(3), 7, Counts([len(row)]))
    assert made


def test_without_a_compiler_and_for_other_formats_torch_draws(monkeypatch):
    row, sampling = logits(0)[0], Sampling(0.8, top_p=0.9)
    expected = from_law(row, sampling, Noise(3), 7)
    other = from_law(row.bfloat16(), sampling, Noise(3), 7)
    asked = []
    monkeypatch.setattr(NativeDraw, "draw", lambda *about: asked.append(about))
    assert not takes(row.bfloat16())
    assert not takes(row.double())
    assert not takes(torch.stack([row, row], dim=1)[:, 0])
    assert draw_token(row.bfloat16(), sampling, Noise(3), 7) == other
    monkeypatch.setattr(target_draw, "native_draw", lambda vocab_size: None)
    assert draw_token(row, sampling, Noise(3), 7) == expected
    assert not asked
