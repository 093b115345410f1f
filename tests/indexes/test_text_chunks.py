"""Chunks of a text: the chosen ones are those that brute force finds, and states that come again replace old ones."""

from __future__ import annotations

import math

import pytest
import torch

from specchat.core.states import TextStates
from specchat.indexes.text_chunks import TextChunks

D, SIZE = 6, 4


def states_of(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed))


def told(rows: torch.Tensor, first: int = 0) -> TextStates:
    return TextStates(first, tuple(range(len(rows))), {1: rows})


def brute_force(rows: torch.Tensor, tokens: int, budget: int, recent: int) -> list[int]:
    """The same choice, written down the long way."""
    tail = max(0, tokens - recent) // SIZE * SIZE
    starts = list(range(SIZE, tail, SIZE))
    means = [[sum(float(rows[start + i][d]) for i in range(SIZE)) / SIZE for d in range(D)] for start in starts]
    centre = [sum(mean[d] for mean in means) / len(means) for d in range(D)]

    def cosine(mean: list[float]) -> float:
        a = [x - c for x, c in zip(mean, centre, strict=True)]
        b = [float(x) - c for x, c in zip(rows[-1], centre, strict=True)]
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))

    likest = sorted(starts, key=lambda start: cosine(means[starts.index(start)]), reverse=True)
    kept = [0, *likest[: (budget - SIZE - (tokens - tail)) // SIZE]]
    return sorted({start + i for start in kept for i in range(SIZE)} | set(range(tail, tokens)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("tokens", "budget"), [(60, 32), (61, 32), (199, 48), (40, 39)])
def test_the_chosen_chunks_are_those_that_brute_force_finds(tokens, budget, seed):
    chunks, rows = TextChunks(1, SIZE), states_of(tokens, seed)
    for first in range(0, tokens, 7):
        chunks.take(told(rows[first : first + 7], first))
    chosen = chunks.choose(tokens, budget, recent_tokens=budget // 4)
    assert chosen == brute_force(rows, tokens, budget, budget // 4)
    assert len(chosen) <= budget


def test_a_text_within_the_budget_is_kept_whole():
    assert TextChunks(1, SIZE).choose(30, 30, 8) == list(range(30))


def test_without_states_the_later_chunks_are_kept():
    assert TextChunks(1, SIZE).choose(40, 16, 4) == [*range(4), *range(28, 40)]


def test_states_that_come_again_replace_those_from_there_on():
    once, twice = TextChunks(1, SIZE), TextChunks(1, SIZE)
    old, new = states_of(90, 1), states_of(60, 2)
    twice.take(told(old))
    twice.take(told(new[30:], 30))
    once.take(told(old[:30]))
    once.take(told(new[30:], 30))
    assert twice.choose(60, 24, 6) == once.choose(60, 24, 6)
    assert torch.equal(twice.likeness(4, 56), once.likeness(4, 56))


def test_it_grows_past_its_first_room_and_forgets():
    chunks, rows = TextChunks(1, SIZE), states_of(3000)
    for first in range(0, 3000, 500):
        chunks.take(told(rows[first : first + 500], first))
    assert chunks.choose(3000, 64, 16) == brute_force(rows, 3000, 64, 16)
    chunks.forget()
    assert set(chunks.likeness(0, 40).tolist()) == {-1.0}
