"""The likeliest tokens are found whatever the vocabulary's size."""

import pytest
import torch
from rows import each_row

from specchat.core.sampling import best_token, best_tokens


def scores(vocab_size, seed=0, rows=3):
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed))


@each_row("vocab_size", [7, 64, 4096, 4097, 50001])
@each_row("count", [1, 8, 64, 100])
def test_the_best_are_those_that_sorting_finds(vocab_size, count):
    values, tokens = best_tokens(scores(vocab_size), count)
    expected = scores(vocab_size).topk(min(count, vocab_size), dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens, expected.indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_of_equals_the_first_is_best(dtype):
    row = torch.zeros(5000, dtype=dtype)
    row[[1234, 77, 4999]] = 3.0
    assert best_token(row) == 77
