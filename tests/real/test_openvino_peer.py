"""OpenVINO GenAI as a peer on real weights, where it is installed."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
from real_weights import fetched

from specchat.bench.installed_peers import READERS, openvino_peers
from specchat.settings import Settings

pytestmark = pytest.mark.real
PROMPT = [1, 4093, 198, 1348, 314, 260, 3575, 282, 4649, 47, 2, 198]  # "What is the capital of France?", nearly
END = 2


@pytest.mark.skipif(importlib.util.find_spec("openvino_genai") is None, reason="openvino-genai is not installed")
def test_openvino_genai_writes_one_text_with_and_without_lookup():
    path = fetched("smollm2-135m-instruct")
    [openvino] = [reader for reader in READERS if reader.peers is openvino_peers]
    assert openvino.problem(path) is None
    pair = SimpleNamespace(vocabulary=SimpleNamespace(eos_ids=frozenset({END})))
    texts = []
    for peer in openvino_peers(pair, Settings(max_tokens=24), path):
        peer.threads = 1
        written = peer.write(PROMPT, 0)
        assert written.decode_s > 0
        texts.append(written.tokens)
    assert texts[0] == texts[1]
    assert len(texts[0]) == 24 or texts[0][-1] == END
