"""A text cut down to what its end is about: by shared rare words, the same part while it grows."""

from __future__ import annotations

import math
import random

import pytest

from specchat.drafters.retrieved_context import RetrievedText, shared_words

FILLER = [5 + i % 7 for i in range(600)]


def brute_force(text, size, query):
    """Cosines of TF-IDF vectors, one number for every token there is."""
    chunks = [text[i : i + size] for i in range(0, len(text) - size + 1, size)]
    words = sorted(set(text))
    rarity = [math.log((1 + len(chunks)) / (1 + sum(word in chunk for chunk in chunks))) for word in words]
    vectors = [[rarity[i] * list(part).count(word) for i, word in enumerate(words)] for part in [*chunks, query]]
    *many, asked = vectors
    return [
        sum(x * y for x, y in zip(vector, asked, strict=True)) / ((math.hypot(*vector) * math.hypot(*asked)) or 1.0)
        for vector in many
    ]


@pytest.mark.parametrize("seed", range(5))
def test_likeness_is_the_cosine_of_weighted_counts(seed):
    rng = random.Random(seed)
    text = [min(int(rng.expovariate(0.2)), 40) for _ in range(160)]
    query = [*text[150:], 99]
    assert shared_words(text, 8, query) == pytest.approx(brute_force(text[: 160 - 160 % 8], 8, query))


def test_a_planted_fact_is_found_by_its_rare_words():
    text = [*FILLER[:200], 90, 91, 92, 93, *FILLER[204:], 90, 91]
    short = RetrievedText(96, 16, 50).shortened(text)
    assert len(short) <= 96
    assert short[short.index(90) : short.index(90) + 4] == [90, 91, 92, 93]
    assert short[:16] == text[:16]
    assert short[-24:] == text[-24:]


def test_a_text_within_the_budget_is_left_whole():
    assert RetrievedText(600, 16, 50).shortened(FILLER) == FILLER


def test_the_part_stays_the_same_until_enough_has_come_and_grows_at_its_end():
    text = RetrievedText(96, 16, 50)
    before = text.shortened(FILLER)
    grown = [*FILLER, *range(100, 149)]
    assert text.shortened(grown) == [*before, *range(100, 149)]
    assert len(text.shortened([*grown, 149])) <= 96
    text.forget()
    assert len(text.shortened(grown)) <= 96
