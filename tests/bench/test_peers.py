"""Peers: what they wrote is counted in ids and timed without the prompt; who cannot run is said in a line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from racers import quick_pair, quick_settings

from specchat.bench import installed_peers
from specchat.bench.circumstances import EnergyMeter
from specchat.bench.installed_peers import Reader, find_peers, openvino_peers, server_peers, why_no_server, why_not
from specchat.bench.peer_engines import Peer, PeerPass, _Generate
from specchat.errors import EngineError
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
    """By a stand-in; its own package on real weights: tests/real/test_openvino_peer.py."""
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
    monkeypatch.setattr(installed_peers.importlib.metadata, "version", lambda package: "1")
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


LLAMA_SERVER = """#!{python}
import json, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
flags = sys.argv[1:]
if flags == ["--version"]:
    sys.exit(print("version: 7 (abc)", file=sys.stderr))
if "--threads 3" in " ".join(flags):
    sys.exit("error: three are too many")
class Answers(BaseHTTPRequestHandler):
    def log_message(self, *about):
        pass
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with open({asked!r}, "a") as file:
            print(json.dumps([flags, asked]), file=file)
        self.send_response(200 if asked["prompt"] else 400)
        self.end_headers()
        if not asked["prompt"]:
            return self.wfile.write(b"no prompt")
        for said in ({{"tokens": [7]}}, {{"tokens": [8, 6]}}, {{"tokens": [], "stop_type": "eos"}}):
            self.wfile.write(b"data: " + json.dumps(said).encode() + b"\\n\\n")
HTTPServer(("127.0.0.1", int(flags[flags.index("--port") + 1])), Answers).serve_forever()
"""


@pytest.fixture
def server_asked(tmp_path, monkeypatch):
    """The file that a stand-in of llama-server writes its flags and requests to; the true one is tried by hand."""
    program, asked = tmp_path / "llama-server", tmp_path / "asked"
    program.write_text(LLAMA_SERVER.format(python=sys.executable, asked=str(asked)))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    return asked


def test_llamas_server_is_asked_with_ids_in_every_kind_of_n_grams(server_asked):
    pair = SimpleNamespace(vocabulary=SimpleNamespace(eos_ids=frozenset({9})), device=CPU)
    peers = server_peers(pair, SimpleNamespace(max_tokens=6), Path("a.gguf"))
    names = ["llama-server", *(f"llama-server ngram-{kind}" for kind in ("simple", "map-k", "mod", "cache"))]
    assert [one.name for one in peers] == names
    assert {one.about["version"] for one in peers} == {"7 (abc)"}
    for one in (peers[0], peers[3]):
        one.threads = 2
        assert one.write([1, 2], 0).tokens == (7, 8, 6, 9)
    peers[3].threads = 1
    peers[3].write([1, 2], 0)
    peers[3].threads = 3
    with pytest.raises(EngineError, match="llama-server does not start: error: three are too many"):
        peers[3].write([1, 2], 0)
    said = [json.loads(line) for line in server_asked.read_text().splitlines()]
    expected = {"prompt": [1, 2], "n_predict": 6, "temperature": 0, "top_k": 1, "stream": True, "cache_prompt": False}
    assert [asked for _, asked in said] == [expected] * 3
    used = [(flags[flags.index("--threads") + 1], flags[-1]) for flags, _ in said]
    assert used == [("2", "none"), ("2", "ngram-mod"), ("1", "ngram-mod")]


def test_a_server_ends_with_the_last_that_knows_it(server_asked):
    engine = installed_peers._Server(Path("a.gguf"), "none", 9, "cpu")
    assert [one.tokens for one in engine([1], 4)] == [[7], [8, 6], [9]]
    port = engine._port
    assert engine._is_ready()
    with pytest.raises(EngineError, match="llama-server does not answer: no prompt"):
        list(engine([], 4))
    del engine
    assert not installed_peers._Server._is_ready(SimpleNamespace(_port=port))


def test_a_missing_or_failing_server_is_told_in_a_line(server_asked, monkeypatch, tmp_path):
    assert why_no_server(Path("a.gguf")) is None
    (tmp_path / "llama-server").write_text("#!/bin/sh\necho error: unknown model architecture >&2\nexit 1\n")
    assert why_no_server(Path("a.gguf")) == "llama-server does not start: error: unknown model architecture"
    (tmp_path / "llama-server").write_bytes(b"\x00\xff")
    assert str(why_no_server(Path("a.gguf"))).startswith("llama-server does not start: [Errno 8] Exec format error")
    monkeypatch.setenv("PATH", "")
    assert why_no_server(Path("a.gguf")) == "llama-server is not on the PATH"


def test_who_cannot_read_the_weights_is_told_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(installed_peers, "transformers_peers", lambda *about: [])
    monkeypatch.setattr("specchat.models.hub.model_state.locate", lambda spec: tmp_path / "model.gguf")
    monkeypatch.setattr(installed_peers.importlib.util, "find_spec", lambda module: None)
    monkeypatch.setenv("PATH", "")
    pair = SimpleNamespace(name="smol", draft=None, threads=1)
    asked = Settings(temperature=0.0, repetition_penalty=1.0)
    assert find_peers(pair, asked, [1, 2]) == (
        [],
        [
            "llama.cpp is not measured: llama-cpp-python is not installed",
            "llama.cpp with n-grams is not measured: llama-server is not on the PATH",
            "OpenVINO GenAI is not measured: openvino-genai is not installed",
        ],
    )
    read = Reader("fake", lambda path: None, lambda *about: [peer([])])
    monkeypatch.setattr(installed_peers, "READERS", (read,))
    [found], notes = find_peers(pair, asked, [1, 2])
    assert (found.name, notes) == ("fake", [])
    monkeypatch.setattr("specchat.models.hub.model_state.locate", lambda spec: tmp_path)
    assert find_peers(pair, asked, [1, 2]) == ([], ["fake is not measured: this target is not a GGUF file"])


@pytest.mark.parametrize(
    ("trial", "told"),
    [
        ("import sys; assert sys.argv[1] == 'a.gguf'", None),
        ("raise SystemExit('no such architecture')", "it cannot read a.gguf: no such architecture"),
        (
            "import os; os.abort()",
            "it crashes on this machine (signal 6); it may have been built for another processor",
        ),
    ],
)
def test_a_package_is_tried_in_a_process_of_its_own(trial, told):
    assert why_not("json", "json", trial, Path("a.gguf")) == told


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
