"""Times rounds piece by piece where they happen, each pass after real drafting: medians by rows, in milliseconds.

    python tools/round_parts.py [--pair smol] [--drafter merge] [--of suffix+hydra] [--nodes 0,3,5,7,8,11,15]

Rounds of all sizes take turns in the same replies, so their ratios hold on a loaded machine too. "× plain" is a round's
time over that of a round without a tree; "gain" is what it would take: tokens a round over that.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whichever is installed

from specchat.bench.configurations import load_pair, prepare_environment, settings_in_force

WARM_UP = 20
PHASES = ("rounding", "products", "attention", "head", "waiting")
COLUMNS = ("ms", "drafting", *PHASES, "rest of pass", "judging etc.")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--pair", default="smol")
    asked.add_argument("--drafter", default="merge")
    asked.add_argument("--of", default="suffix+hydra")
    asked.add_argument("--policy", default="best_first")
    asked.add_argument("--nodes", default="0,3,5,7,8,11,15")
    asked.add_argument("--depth", type=int, default=4)
    asked.add_argument("--width", type=int, default=3)
    asked.add_argument("--temperature", type=float, default=0.0)
    asked.add_argument("--top-p", type=float, default=1.0)
    asked.add_argument("--penalty", type=float, default=1.0)
    asked.add_argument("--tokens", type=int, default=200, help="of each reply")
    asked.add_argument("--seconds", type=float, default=40.0)
    measure(asked.parse_args())


def measure(asked: argparse.Namespace) -> None:
    prepare_environment(2)
    from specchat.bench.workloads import own_workload
    from specchat.core.budget import Budget
    from specchat.core.context import Context
    from specchat.core.noise import Noise
    from specchat.decoding.assemble import assemble, sampling

    chosen: dict[str, Any] = {"pair": asked.pair, "drafter": asked.drafter, "policy": asked.policy, "threads": 2}
    chosen |= {"temperature": asked.temperature, "top_p": asked.top_p, "repetition_penalty": asked.penalty}
    if asked.drafter in ("merge", "cascade", "several"):
        chosen["method_options"] = {f"{asked.drafter}.of": asked.of}
    settings = settings_in_force(chosen)
    pair = load_pair(settings)
    model, network = pair.target.model, pair.target.model.network
    speculator = assemble(settings, model, pair.draft.model if pair.draft else None, resources=pair.resources)
    sizes = [Budget(int(n), asked.depth, asked.width) for n in asked.nodes.split(",")]
    turns = itertools.cycle(sizes)
    rows: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    emitted: dict[int, list[int]] = defaultdict(list)
    counted, ends = 0, time.perf_counter() + asked.seconds

    class InTurn:
        def plan(self, context: Context) -> Budget:
            return next(turns)

        def observe(self, round: object) -> None: ...

    speculator.controller = InTurn()
    for question in own_workload().in_turn():
        prompt = pair.vocabulary.encode_chat([{"role": "user", "content": question.turns[0]}])
        context = Context(prompt, len(prompt), model.vocab_size, sampling=sampling(settings), noise=Noise(7))
        speculator.start(context.history)
        while len(context.history) < context.prompt_tokens + asked.tokens and time.perf_counter() < ends:
            began = time.perf_counter()
            draft = speculator.propose(context, speculator.plan(context))
            network.time_phases(True)  # a drafter may work with the same threads
            submitted = speculator.submit(draft)
            phases = network.phases()
            round = speculator.settle(submitted, context)
            took_s, timings = time.perf_counter() - began, round.timings
            counted += 1
            if counted > WARM_UP and len(round.tree) == 1 + round.budget.nodes:
                inside = [phases[name] for name in PHASES]
                parts = (took_s, timings.draft_s, *inside, timings.verify_s - sum(inside), timings.other_s)
                rows[len(round.tree)].append(parts)
                emitted[len(round.tree)].append(len(round.emitted))
    report(rows, emitted)


def report(rows: dict[int, list[tuple[float, ...]]], emitted: dict[int, list[int]]) -> None:
    print("rows rounds " + " ".join(f"{name:>12}" for name in COLUMNS) + "  × plain  tokens    gain")
    plain = statistics.median(parts[0] for parts in rows[1]) if 1 in rows else None
    for count in sorted(rows):
        middle = [statistics.median(part) for part in zip(*rows[count], strict=True)]
        figures = " ".join(f"{1e3 * value:12.3f}" for value in middle)
        ratio, tokens = middle[0] / (plain or middle[0]), statistics.mean(emitted[count])
        print(f"{count:4} {len(rows[count]):6} {figures} {ratio:8.2f} {tokens:7.2f} {tokens / ratio:7.2f}")


if __name__ == "__main__":
    main()
