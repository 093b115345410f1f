"""Which pair the empty page offers in place of a small one: the largest that fits and can be had."""

from __future__ import annotations

import shutil
from collections import namedtuple

import pytest

from specchat.cli import pair_states
from specchat.cli.pair_states import offer_for
from specchat.compiled.machine import cpu_name
from specchat.core.costs import Costs
from specchat.engine.server.measured_passes import kept_profiles
from specchat.errors import WeightsError

GB = 1_000_000_000
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def machine(monkeypatch):
    """A machine without a graphics card, with memory and disk, that reaches the hub; functions change it."""

    def having(memory=16 * GB, disk=100 * GB, online=True):
        def listed(source):
            if not online:
                raise WeightsError("no network")

        monkeypatch.setattr(pair_states, "has_graphics_card", lambda: False)
        monkeypatch.setattr(pair_states, "free_bytes", lambda: memory)
        monkeypatch.setattr(pair_states.hub, "list_repository", listed)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(disk, 0, disk))

    return having


def test_the_coder_is_offered_where_it_fits_and_can_be_reached(machine):
    machine()
    offer = offer_for("smol")
    assert (offer.size, offer.name) == ("135M", "qwen-coder")
    assert 1.0 * GB < offer.fetch_bytes < 1.2 * GB


def test_the_offer_says_how_quick_it_would_be_by_the_passes_that_were_timed_here(machine):
    machine()
    assert offer_for("smol").tokens_per_s == 0
    passes = ((1, 0.004), (8, 0.006))
    store = kept_profiles()
    store.put("a key of another form", cpu_name(), Costs(passes))
    store.put("other|cpu|int4|native|2", cpu_name(), Costs(passes))
    store.put("smollm2-135m-instruct|cpu|int4|native|2", "another processor", Costs(passes))
    assert offer_for("smol").tokens_per_s == 0, "neither another model's passes nor another machine's tell"
    store.put("smollm2-135m-instruct|cpu|int4|native|2", cpu_name(), Costs(passes))
    read = {info.name: info.read_bytes for info in pair_states.known_pairs()}
    assert offer_for("smol").tokens_per_s == pytest.approx(250 * read["smol"] / read["qwen-coder"])
    store.put("qwen2.5-coder-1.5b-instruct|cpu|int4|native|2", cpu_name(), Costs(((1, 0.04), (8, 0.05))))
    assert offer_for("smol").tokens_per_s == pytest.approx(25), "its own passes tell most"


@pytest.mark.parametrize("short", [{"memory": GB // 2}, {"disk": GB}, {"online": False}], ids=str)
def test_nothing_is_offered_that_does_not_fit_or_cannot_be_had(machine, short):
    machine(**short)
    assert (offer_for("smol").size, offer_for("smol").name) == ("135M", "")


def test_a_larger_model_is_no_toy(machine):
    machine()
    assert offer_for("qwen-coder") is None
    assert offer_for("scripted") is None
