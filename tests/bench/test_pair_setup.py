"""What measurements and proofs start with."""

from __future__ import annotations

import pytest

from specchat.bench.configurations import settings_in_force
from specchat.bench.runner import Bench, BenchPlan
from specchat.bench.workloads import own_workload
from specchat.config import load_catalog, settings_of
from specchat.settings import GREEDY


def test_what_is_measured_is_greedy_although_the_chat_samples():
    chat = settings_of(load_catalog().pair("smol"))
    assert (chat.temperature, chat.top_p) == (0.5, 0.9)
    measured = settings_in_force({"pair": "smol"})
    assert {name: getattr(measured, name) for name in GREEDY} == GREEDY
    assert measured.drafter == chat.drafter


def test_a_flag_makes_a_measurement_sample():
    measured = settings_in_force({"pair": "smol", "temperature": 0.8})
    assert (measured.temperature, measured.top_p) == (0.8, 1.0)


@pytest.mark.parametrize(
    ("compare", "draft"),
    [("prompt_lookup,suffix", None), ("suffix,draft_model", "scripted-draft"), ("auto", "scripted-draft")],
)
def test_a_benchmark_loads_a_draft_model_only_where_something_compared_uses_it(compare, draft):
    settings = settings_in_force({"pair": "scripted", "drafter": "fuse", "max_tokens": 4})
    workload = own_workload().first_turns().limited(1)
    (run,) = Bench(BenchPlan(settings, workload, compare, perplexity=False)).run().runs
    assert run.draft == draft
    assert [result.name for result in run.results] == ["plain", *compare.split(",")]
