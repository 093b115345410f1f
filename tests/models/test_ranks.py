"""A model over two processes says what it says in one: the contract of models, moved rows, and what goes wrong."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts import test_adapter_contract, test_model_contract, test_model_prefill, test_model_requests
from contracts.models import Subject, over_network, shared_network, source_of

from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.ranks.leading import LeadingNetwork, Ranks
from specchat.models.ranks.plan import Load
from specchat.models.ranks.processes import start_here
from specchat.models.weights.families import FAMILIES


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two processes for all tests here: starting one takes as long as all of these."""
    with contextlib.closing(start_here(("cpu", "cpu"), 1)) as started:
        yield started


@pytest.fixture(scope="module")
def led(ranks, tmp_path_factory) -> Callable[[str], LeadingNetwork]:
    """Family → its tiny network over both."""

    @cache
    def made(family: str) -> LeadingNetwork:
        network = shared_network(family)
        folder = tmp_path_factory.mktemp(family)
        network.save_pretrained(folder)
        load = Load(0, family, str(folder), "float32", [], "", rounds=False, threads=1)
        return ranks.network(Shape.of(network.config), source_of(network), load)[0]

    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_it_keeps_the_contract(led, family):
    factory = over_network(lambda network, tokens: Decoder(led(family), tokens))
    ran = 0
    for module in (test_model_contract, test_model_prefill, test_model_requests):
        for name, test in vars(module).items():
            if name.startswith("test_") and inspect.isfunction(test) and list(inspect.signature(test).parameters) == ["subject"]:
                print(name)
                test(factory(family, 256))
                ran += 1
    print(ran)
