"""Logits that are no finite numbers, as damaged weights give them, are refused by every way to draw from them."""

from __future__ import annotations

import math

import pytest
import torch
from rows import each_row
from test_draws import CUTS, PENALTIES

from specchat.core import target_draw
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Counts, Law, Sampling, best_token
from specchat.core.target_draw import draw_batch, draw_token
from specchat.errors import NotNumbers

NAN, INFINITY, SIZE = math.nan, math.inf, 5000
ROWS = {
    "none is one": torch.full((SIZE,), NAN),
    "one is none": torch.arange(SIZE) + torch.where(torch.arange(SIZE) == 4000, NAN, 0.0),
    "one is infinite": torch.where(torch.arange(SIZE) == 4000, INFINITY, 0.0),
}
LEAST = torch.full((SIZE,), -INFINITY)


@each_row("row", ROWS)
@each_row("cut", CUTS)
@each_row("penalties", PENALTIES)
@each_row("temperature", [0.0, 0.8])
def test_no_token_is_drawn(row, cut, penalties, temperature, monkeypatch):
    sampling, logits = Sampling(temperature, **CUTS[cut], **PENALTIES[penalties]), ROWS[row]
    said = Counts([1, 2], [3])
    assert draw_batch(logits[None], [()], [9], sampling, said, Noise(1)) == [None]
    for one in (logits, logits.bfloat16()):
        with pytest.raises(NotNumbers):
            draw_token(one, sampling, Noise(1), 9, said)
    monkeypatch.setattr(target_draw, "native_draw", lambda width: None)
    with pytest.raises(NotNumbers):
        draw_token(logits, sampling, Noise(1), 9, said)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("cut", CUTS)
def test_no_token_is_drawn_where_all_are_excluded(temperature, cut):
    with pytest.raises(NotNumbers):
        draw_token(LEAST, Sampling(temperature, **CUTS[cut]), Noise(1), 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_no_token_is_the_best(dtype):
    for row in (*ROWS.values(), LEAST, torch.empty(0)):
        with pytest.raises(NotNumbers):
            best_token(row.to(dtype))


def test_probabilities_that_are_none_are_not_drawn_from():
    with pytest.raises(NotNumbers):
        Law.of(torch.full((9,), NAN, dtype=torch.float64)).draw(Noise(1), Stream.TARGET, 9)
