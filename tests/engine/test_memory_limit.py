"""The setting `memory`: too low a limit is refused with the least that works; a context is cut to what fits."""

from __future__ import annotations

import mmap
import re

import numpy as np
import pytest
import torch
from contracts.models import own_decoder, shared_network
from tiny_models import tiny_gguf

from specchat.engine.far import memory_limit
from specchat.engine.far.memory import watch_peak
from specchat.engine.far.memory_limit import limit_memory, refuse_by_size
from specchat.errors import MemoryLimitTooLow
from specchat.models.model_loading import Loaded
from specchat.settings import Settings

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def base(monkeypatch):
    monkeypatch.setattr(memory_limit, "memory_bytes", lambda device: 300_000_000)


def loaded() -> Loaded:
    model = own_decoder(shared_network("llama"), 500_000)
    return Loaded("tiny", model, None, frozenset(), 0, "float32")


def test_a_limit_that_is_too_low_is_refused_with_the_least_that_works_and_that_works():
    with pytest.raises(MemoryLimitTooLow, match="memory = 40MB is too little for pair 'smol'") as refused:
        limit_memory(Settings().but({"memory": "40MB"}), CPU, loaded(), loaded())
    assert refused.value.exit_code == 2
    found = re.search(r": (\w+) is the least that works", str(refused.value))
    assert found is not None
    target, draft = loaded(), loaded()
    limit, notes = limit_memory(Settings().but({"memory": found[1]}), CPU, target, draft)
    assert notes == (f"context limited to {target.model.context_tokens} tokens by memory = {found[1]}",)
    assert 512 <= target.model.context_tokens == draft.model.context_tokens < 500_000
    assert limit.base_bytes < limit.bytes


def test_a_generous_limit_leaves_the_context_alone_and_none_is_what_the_machine_has_free():
    target = loaded()
    limit, notes = limit_memory(Settings().but({"memory": "100GB"}), CPU, target, None)
    assert (limit.bytes, notes, target.model.context_tokens) == (100 * 10**9, (), 500_000)
    unlimited, notes = limit_memory(Settings(), CPU, target, None)
    assert unlimited.bytes > unlimited.base_bytes
    assert notes == ()


def test_a_model_whose_weights_are_beyond_the_limit_is_refused_before_they_are_read(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    refuse_by_size("tiny", path, Settings())
    refuse_by_size("tiny", path, Settings().but({"memory": "1MB"}))
    with pytest.raises(MemoryLimitTooLow, match="too little for tiny: its weights alone take"):
        refuse_by_size("tiny", path, Settings().but({"memory": "10KB"}))


def test_the_peak_is_of_what_was_held_since_it_is_watched():
    peak = watch_peak(CPU)
    before = peak()
    taken = mmap.mmap(-1, 30_000_000)  # pages of its own: what was freed before might be handed out again
    np.frombuffer(taken, np.uint8).fill(1)
    taken.close()
    assert peak() >= before + 25_000_000
    assert watch_peak(CPU)() < before + 25_000_000
