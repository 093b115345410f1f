"""Peers: what they wrote is counted in ids and timed without the prompt; who cannot run is said in a line."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from racers import quick_pair, quick_settings

from specchat.bench.circumstances import EnergyMeter
from specchat.bench.peer_engines import Peer, PeerPass, _Generate, find_peers

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
