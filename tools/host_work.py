"""Measures what the host does in a round outside the native kernels: median milliseconds over rounds of one reply.

    python tools/host_work.py [--pair smol] [--drafter suffix] [--nodes 8] [--rounds 200]
    python tools/host_work.py --tiny      # a network of two small layers: with caches left alone, and swept in between

The text repeats itself, so every round drafts. To compare two versions, run it from each checkout in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whichever is installed

from specchat.bench.configurations import load_pair, prepare_environment, settings_in_force

WARM_UP = 20
SENTENCE = "The quick brown fox jumps over the lazy dog, and the dog sleeps in the warm sun by the river. "
SWEPT_BYTES = 100 << 20  # as much as a pass of SmolLM2 reads


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--pair", default="smol")
    asked.add_argument("--drafter", default="suffix")
    asked.add_argument("--policy", default="best_first")
    asked.add_argument("--nodes", type=int, default=8)
    asked.add_argument("--rounds", type=int, default=200)
    asked.add_argument("--tiny", action="store_true", help="a network whose passes leave the processor's caches alone")
    told = asked.parse_args()
    prepare_environment(2)
    sizes = {"nodes": told.nodes, "depth": told.nodes, "width": 3, "controller": "fixed", "threads": 2}
    chosen = {"pair": told.pair, "drafter": told.drafter, "policy": told.policy, "temperature": 0.0}
    settings = settings_in_force({**chosen, **sizes})
    if not told.tiny:
        pair = load_pair(settings)
        prompt = pair.vocabulary.encode_chat([{"role": "user", "content": SENTENCE * 12 + "Repeat."}])
        draft = pair.draft.model if pair.draft else None
        measure(settings, pair.target.model, prompt, told.rounds, draft=draft, resources=pair.resources)
        return
    import numpy as np

    swept = np.zeros(SWEPT_BYTES, dtype=np.uint8)
    for name, between in (("caches left alone", lambda: None), ("caches swept before every round", swept.sum)):
        print(name)
        measure(settings, tiny_model(), list(range(20, 40)) * 12, told.rounds, between)


def tiny_model() -> Any:
    """Random weights, read by the native kernels in next to no time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from specchat.models.cpu_kernels.network import NativeNetwork
    from specchat.models.decoder.decoder import Decoder
    from specchat.models.decoder.shape import Shape
    from specchat.models.weights.weight_source import TensorSource

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, max_position_embeddings=4096,
    )  # fmt: skip
    weights = LlamaForCausalLM(config).state_dict()
    return Decoder(NativeNetwork(Shape.of(config), TensorSource(weights), "int4"), 4096)


def measure(
    settings: Any,
    model: Any,
    prompt: list[int],
    rounds: int,
    between: Callable[[], object] = lambda: None,
    draft: Any = None,
    **resources: Any,
) -> None:
    from specchat.core.context import Context
    from specchat.decoding.assemble import assemble, sampling

    network = model.network
    context = Context(prompt, len(prompt), model.vocab_size, sampling=sampling(settings))
    speculator = assemble(settings, model, draft, **resources)
    speculator.start(context.history)
    parts: dict[str, list[float]] = {"all": [], "drafting": [], "around the pass": [], "judging and the rest": []}
    for index in range(WARM_UP + rounds):
        between()
        network.time_phases(True)
        began = time.perf_counter()
        round = speculator.round(context)
        took_s = time.perf_counter() - began
        kernels_s = sum(network.phases().values())
        if index >= WARM_UP:
            timings = round.timings
            seconds = (took_s - kernels_s, timings.draft_s, timings.verify_s - kernels_s, timings.other_s)
            for part, value in zip(parts.values(), seconds, strict=True):
                part.append(value)
    for name, values in parts.items():
        print(f"{name:22} {1e3 * statistics.median(values):6.3f} ms")


if __name__ == "__main__":
    main()
