"""The setting `memory`: too low a limit is refused with the least that works; a context is cut to what fits."""

from __future__ import annotations

import mmap
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from contracts.models import own_decoder, shared_network, source_of
from pretended_device import RecordsNothing, pretended
from tiny_models import tiny_gguf

from specchat.core.drafting_networks import LeftOut
from specchat.core.memory import PairMemory
from specchat.engine.server import memory as memory_limit
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.memory import limit_memory, limit_with_drafts, refuse_by_size, watch_peak
from specchat.engine.server.open_pair import OpenPair
from specchat.errors import CombinationError, MemoryLimitTooLow, NotEnoughMemory
from specchat.models.backends.scripted import ScriptedVocabulary
from specchat.models.decoder import kv_cache
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.network import Network
from specchat.models.decoder.pruning import PrunableFile
from specchat.models.decoder.recorded_network import GraphNetwork
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import Loaded, own_network
from specchat.models.weights.weight_source import WeightSource
from specchat.settings import Settings, memory_text, parse_memory

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def base(monkeypatch):
    monkeypatch.setattr(memory_limit, "memory_bytes", lambda device: 300_000_000)


def loaded() -> Loaded:
    model = own_decoder(shared_network("llama"), 500_000)
    return Loaded("tiny", model, None, frozenset(), 0, "float32")


def prunable() -> Loaded:
    """The same, of which narrower networks can be made."""
    network, plain = shared_network("llama"), loaded()
    shape = Shape.of(network.config)

    def make(shape: Shape, source: WeightSource) -> Network:
        return own_network(shape, source, "float32", CPU, "torch")[0]

    assert isinstance(plain.model, Decoder)
    return replace(plain, prunable=PrunableFile(plain.model, lambda: (source_of(network), shape), make))


def test_a_limit_that_is_too_low_is_refused_with_the_least_that_works_and_that_works():
    with pytest.raises(MemoryLimitTooLow, match="memory = 40MB is too little for pair 'smol'") as refused:
        limit_memory(Settings().but({"memory": "40MB"}), CPU, loaded(), [loaded()])
    assert refused.value.exit_code == 2
    found = re.search(r": (\w+) is the least that works", str(refused.value))
    assert found is not None
    target, draft = loaded(), loaded()
    limit, notes = limit_memory(Settings().but({"memory": found[1]}), CPU, target, [draft])
    assert notes == (f"context limited to {target.model.context_tokens} tokens by memory = {found[1]}",)
    assert 512 <= target.model.context_tokens == draft.model.context_tokens < 500_000
    assert limit.base_bytes < limit.bytes


def test_a_network_that_a_drafter_makes_counts_when_the_context_is_limited():
    def least(drafter: str) -> int:
        with pytest.raises(MemoryLimitTooLow) as refused:
            limit_memory(Settings().but({"memory": "40MB", "drafter": drafter}), CPU, prunable(), [])
        found = re.search(r": (\w+) is the least that works", str(refused.value))
        assert found is not None
        return parse_memory(found[1])

    more = least("pruned")
    assert more > least("suffix")
    settings = Settings().but({"memory": memory_text(more), "drafter": "pruned"})
    target, other = prunable(), prunable()
    limit_memory(settings, CPU, target, [])
    limit_memory(settings.but({"drafter": "suffix"}), CPU, other, [])
    assert 512 <= target.model.context_tokens < other.model.context_tokens
    assert target.prunable is not None
    assert target.prunable.memory(LeftOut(0.2, 0.2), 8, 64).stand_in.context_tokens == target.model.context_tokens


def test_a_pair_whose_context_was_limited_without_a_network_or_a_draft_model_is_loaded_anew_for_it():
    def serves(before: dict[str, str], after: dict[str, str]) -> bool:
        conversation = SimpleNamespace(settings=Settings().but(before))
        pair = LoadedPair("tiny", loaded(), ScriptedVocabulary(), CPU, "float32", [], 0.0, named=("small",))
        return OpenPair.serves(SimpleNamespace(conversation=conversation, loaded=pair), Settings().but(after))

    limited = {"memory": "2GB"}
    assert serves({}, {"drafter": "pruned"})
    assert serves(limited, {"drafter": "layer_skip", **limited})
    assert not serves(limited, {"drafter": "pruned", **limited})
    assert serves({}, {"drafter": "fuse"})
    assert not serves(limited, {"drafter": "fuse", **limited})


def test_a_generous_limit_leaves_the_context_alone_and_none_is_what_the_machine_has_free():
    target = loaded()
    limit, notes = limit_memory(Settings().but({"memory": "100GB"}), CPU, target, [])
    assert (limit.bytes, notes, target.model.context_tokens) == (100 * 10**9, (), 500_000)
    unlimited, notes = limit_memory(Settings(), CPU, target, [])
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


def test_a_devices_memory_limits_the_context_and_this_is_said():
    target, free = loaded(), 60_000_000
    with pretended(memory=free) as device:
        limit, notes = limit_memory(Settings(), device, target, [])
    tokens = target.model.context_tokens
    assert 1000 < tokens < 500_000
    assert notes == (f"context limited to {tokens} tokens by the memory of cuda:0",)
    assert PairMemory(target.model).plain_bytes(tokens) < free
    assert limit.bytes == limit.base_bytes + free


def test_a_context_is_not_cut_while_another_pair_could_give_its_memory_back():
    with pretended(memory=60_000_000) as device, pytest.raises(NotEnoughMemory, match="which holds another pair"):
        limit_memory(Settings(), device, loaded(), [], alone=False)


def recorded(device: torch.device) -> Loaded:
    network = shared_network("llama")
    weights = Builder(Shape.of(network.config), source_of(network), "float32", device).build()
    model = Decoder(GraphNetwork(EagerNetwork(weights), RecordsNothing()), 500_000)
    return Loaded("tiny", model, None, frozenset(), 0, "float32")


def test_a_device_gives_the_caches_their_memory_at_load():
    free = 60_000_000
    with pretended(memory=free) as device:
        target, draft = recorded(device), recorded(device)
        limit_memory(Settings(), device, target, [draft])
        tokens = target.model.context_tokens
        assert 1000 < tokens == draft.model.context_tokens < 500_000
        for model in (target.model, draft.model):
            assert isinstance(model, Decoder)
            assert model.cache.capacity > tokens
            assert model.cache_bytes(0) == model.cache_bytes(tokens)


@pytest.mark.parametrize("free", [20 << 20, 60 << 20, 1 << 40])
def test_chunks_of_a_prompt_take_what_the_context_leaves(free):
    """Where the context is cut, they begin large and become smaller as more of the prompt is seen."""
    with pretended(memory=free) as device:
        target = recorded(device)
        limit_memory(Settings(), device, target, [])
        model, pair = target.model, PairMemory(target.model)
        room = 0.75 * free - model.cache_bytes(model.context_tokens)
        behind = range(0, model.context_tokens, 500)
        chunks = [model.chunk_after(tokens) for tokens in behind]
        assert model.chunk_bytes <= room
        for tokens, chunk in zip(behind, chunks, strict=True):
            assert model.pass_bytes(chunk, tokens, logits=False) <= room
            assert chunk == 2048 or model.pass_bytes(2 * chunk, tokens, logits=False) > model.chunk_bytes
        assert chunks == sorted(chunks, reverse=True)
        assert chunks[0] > 256
        assert pair.prompt_bytes(model.context_tokens) <= 0.75 * free
        assert (chunks[-1] < chunks[0]) == (model.context_tokens < 500_000)


def test_a_device_that_refuses_the_memory_is_told_at_load(monkeypatch):
    def refuses(shape: object, like: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    with pretended() as device:
        target, draft = recorded(device), recorded(device)
        limit, _ = limit_memory(Settings(), device, target, [])
        monkeypatch.setattr(kv_cache, "zeros", refuses)
        with pytest.raises(NotEnoughMemory, match="no memory for a context of 500000 tokens: CUDA out of memory"):
            limit_memory(Settings(), device, draft, [])
        with pytest.raises(CombinationError, match="draft model tiny, for whose cache cuda:0 has too little memory"):
            limit_with_drafts(limit, Settings().but({"drafter": "fuse"}), target, (), [draft])


def test_a_device_without_memory_for_any_context_is_refused():
    with pretended(memory=10_000) as device, pytest.raises(NotEnoughMemory, match="too little for any context"):
        limit_memory(Settings(), device, loaded(), [])
