"""A known text surprises less than noise."""

from __future__ import annotations

from racers import quick_pair

from specchat.bench.runner import measure_perplexity
from specchat.models.backends.scripted import PASSAGES


def test_perplexity_of_a_certain_text_is_low_and_of_noise_is_high():
    pair = quick_pair()
    known, unknown = measure_perplexity(pair, PASSAGES[0]), measure_perplexity(pair, "zq xv jk " * 20)
    assert known is not None
    assert unknown is not None
    assert known.value < 3 < unknown.value
    assert measure_perplexity(pair, "") is None
