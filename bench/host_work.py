"""Measures what the host does in a round outside the native kernels: median milliseconds over rounds of one reply.

    python bench/host_work.py [--pair smol] [--drafter suffix] [--nodes 8] [--rounds 200]

The text repeats itself, so every round drafts. To compare two versions, run it from each checkout in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whichever is installed

from specchat.bench.pair_setup import load_pair, prepare_environment, settings_in_force

WARM_UP = 20
SENTENCE = "The quick brown fox jumps over the lazy dog, and the dog sleeps in the warm sun by the river. "


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--pair", default="smol")
    asked.add_argument("--drafter", default="suffix")
    asked.add_argument("--policy", default="best_first")
    asked.add_argument("--nodes", type=int, default=8)
    asked.add_argument("--rounds", type=int, default=200)
    measure(asked.parse_args())


def measure(asked: argparse.Namespace) -> None:
    prepare_environment(2)
    from specchat.core.context import Context
    from specchat.decoding.assemble import assemble, sampling

    sizes = {"nodes": asked.nodes, "depth": asked.nodes, "width": 3, "controller": "fixed", "threads": 2}
    chosen = {"pair": asked.pair, "drafter": asked.drafter, "policy": asked.policy, "temperature": 0.0}
    settings = settings_in_force({**chosen, **sizes})
    pair = load_pair(settings)
    model, network = pair.target.model, pair.target.model.network
    prompt = pair.vocabulary.encode_chat([{"role": "user", "content": SENTENCE * 12 + "Repeat."}])
    context = Context(prompt, len(prompt), model.vocab_size, sampling=sampling(settings))
    speculator = assemble(settings, model, pair.draft.model if pair.draft else None, resources=pair.resources)
    speculator.start(context.history)
    parts: dict[str, list[float]] = {"all": [], "drafting": [], "around the pass": [], "judging and the rest": []}
    for index in range(WARM_UP + asked.rounds):
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
