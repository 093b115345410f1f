"""Peers: what they wrote is counted in ids and timed without the prompt; who cannot run is said in a line."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from racers import quick_pair, quick_settings

from specchat.bench import peer_engines
from specchat.bench.circumstances import EnergyMeter
from specchat.bench.peer_engines import Peer, PeerPass, _Generate, find_peers, openvino_peers
from specchat.settings import Settings

CPU = torch.device("cpu")


def peer(passes, eos=frozenset({99}), max_tokens=6) -> Peer:
    def generate(prompt, most):
        for tokens in passes:
            yield PeerPass(tokens, time.perf_counter())

    return Peer("fake", generate, eos, max_tokens, EnergyMeter(CPU), lambda threads: None)


@pytest.mark.parametrize(
    ("passes", "tokens", "stop"),
    [
        ([[1], [2], [3], [99], [5]], (1, 2, 3, 99), "end"),
        ([[1], [2, 99, 4]], (1, 2, 99), "end"),
        ([[1, 2, 3], [4, 5, 6, 7]], (1, 2, 3, 4, 5, 6), "length"),
        ([], (), "end"),
    ],
)
def test_a_reply_ends_at_an_end_token_or_at_the_most_tokens(passes, tokens, stop):
    written = peer(passes).write([1], 0)
    assert (written.tokens, written.stop) == (tokens, stop)


def test_reading_the_prompt_is_timed_apart():
    written = peer([])._timed([PeerPass([1], 10.0), PeerPass([2], 10.5), PeerPass([3, 4], 11.0)], 8.0, 4, None)
    assert written.decode_s == pytest.approx(4 * 1.0 / 3)
    assert written.prefill_s + written.decode_s == pytest.approx(3.0)


def test_a_peer_uses_the_faster_number_of_threads():
    chosen = []

    def generate(prompt, most):
        time.sleep(0.001 if chosen[-1] == 1 else 0.02)
        yield PeerPass([1] * most, time.perf_counter())

    one = Peer("fake", generate, frozenset(), 8, EnergyMeter(CPU), chosen.append)
    one.choose_threads([1, 2], 4)
    assert one.threads == one.about["threads"] == 1


def test_a_pair_without_weights_has_no_peers():
    peers, notes = find_peers(quick_pair(), quick_settings(), [1, 2])
    assert peers == []
    assert notes == ["no peer can run a model without weights"]


def test_openvino_is_asked_with_ids_and_counted_by_what_it_streams(monkeypatch):
    """By a stand-in; its own package on real weights: tests/real/test_peers.py."""
    asked: list[object] = []

    class Pipeline:
        def __init__(self, path, device, **properties):
            asked.append((path, device, properties))

        def generate(self, ids, config, streamer):
            asked.append((np.asarray(ids).tolist(), vars(config)))
            for tokens in (7, [8, 9], 10):
                streamer.write(tokens)
            streamer.end()

    parts = {"LLMPipeline": Pipeline, "GenerationConfig": SimpleNamespace, "StreamerBase": object}
    genai = SimpleNamespace(**parts, StreamingStatus=SimpleNamespace(RUNNING=0))
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Tensor=lambda ids: ids))
    monkeypatch.setattr(peer_engines.importlib.metadata, "version", lambda package: "1")
    pair = SimpleNamespace(vocabulary=SimpleNamespace(eos_ids=frozenset({9})))
    plain, lookup = openvino_peers(pair, SimpleNamespace(max_tokens=6), Path("a.gguf"))
    for one in (plain, lookup):
        one.threads = 2
        assert one.write([1, 2], 0).tokens == (7, 8, 9), "until its end token"
    one.threads = 1
    one.write([1, 2], 0)
    config = {"max_new_tokens": 6, "do_sample": False, "stop_token_ids": {9}}
    guessing = config | {"num_assistant_tokens": 5, "max_ngram_size": 3}
    assert asked == [
        ("a.gguf", "CPU", {"INFERENCE_NUM_THREADS": 2, "prompt_lookup": False}), ([[1, 2]], config),
        ("a.gguf", "CPU", {"INFERENCE_NUM_THREADS": 2, "prompt_lookup": True}), ([[1, 2]], guessing),
        ("a.gguf", "CPU", {"INFERENCE_NUM_THREADS": 1, "prompt_lookup": True}), ([[1, 2]], guessing),
    ]  # fmt: skip


def test_who_cannot_read_the_weights_is_told_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(peer_engines, "transformers_peers", lambda *about: [])
    monkeypatch.setattr("specchat.models.hub.model_state.locate", lambda spec: tmp_path / "model.gguf")
    monkeypatch.setattr(peer_engines.importlib.util, "find_spec", lambda module: None)
    pair = SimpleNamespace(name="smol", draft=None)
    asked = Settings(temperature=0.0, repetition_penalty=1.0)
    assert find_peers(pair, asked, [1, 2]) == (
        [],
        [
            "llama.cpp is not measured: llama-cpp-python is not installed",
            "OpenVINO GenAI is not measured: openvino-genai is not installed",
        ],
    )
    monkeypatch.setattr(peer_engines.importlib.util, "find_spec", lambda module: module)
    for failing, told in (
        ("raise SystemExit('no such architecture')", "it cannot read model.gguf: no such architecture"),
        (
            "import os; os.abort()",
            "it crashes on this machine (signal 6); it may have been built for another processor",
        ),
    ):
        reader = peer_engines.Reader("fake", "fake", "fake", failing, lambda *about: pytest.fail("it was asked"))
        monkeypatch.setattr(peer_engines, "READERS", (reader,))
        assert find_peers(pair, asked, [1, 2]) == ([], [f"fake is not measured: {told}"])
    monkeypatch.setattr(peer_engines, "READERS", (peer_engines.Reader("", "m", "", "", lambda *about: [peer([])]),))
    [found], notes = find_peers(SimpleNamespace(name="smol", draft=None, threads=1), asked, [1, 2])
    assert (found.name, notes) == ("fake", [])


@pytest.mark.parametrize("how", [{}, {"prompt_lookup_num_tokens": 3}, {"assistant_model": None}])
def test_transformers_own_generation_writes_its_greedy_text(how):
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    network = LlamaForCausalLM(config).eval()
    network.generation_config = GenerationConfig()
    if "assistant_model" in how:
        assistant = LlamaForCausalLM(config).eval()
        assistant.generation_config = GenerationConfig()
        how = {"assistant_model": assistant}
    pair = SimpleNamespace(device=CPU, vocabulary=SimpleNamespace(eos_ids=frozenset({49})))
    prompt = [5, 6, 7, 5, 6, 7, 5]
    found = [token for one in _Generate(network, pair, how)(prompt, 12) for token in one.tokens]
    text = list(prompt)
    with torch.inference_mode():
        while len(text) < len(prompt) + 12 and text[-1] != 49:
            text.append(int(network(torch.tensor([text])).logits[0, -1].argmax()))
    assert found[:12] == text[len(prompt) :]


def test_energy_is_absent_where_nothing_counts_it():
    meter = EnergyMeter(CPU)
    assert meter.since(None) is None
    assert meter.joules() is None or meter.joules() >= 0
