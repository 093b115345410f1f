"""Times passes of a pair's target by rows and context, and reading prompts, with several builds of the kernels in turn.

    python tools/row_costs.py [--pair smol] [--rows 1,8,16] [--contexts 200,512,2000,4000] [--prompts 512,4000]
    python tools/row_costs.py --kernels native,alderlake,haswell      # other processors' code on this one
    python tools/row_costs.py --kernels native,../other/specchat/models/cpu_kernels   # another checkout's

All builds and sizes take turns, so ratios hold on a loaded machine too. Medians, in milliseconds by phase; prompts in
tokens a second, and their products as a share of the operations on 8-bit numbers that the cores manage at most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whichever is installed

from specchat.bench.configurations import load_pair, prepare_environment, settings_in_force

PHASES = ("rounding", "products", "attention", "head", "waiting")
WARM_UP = 2
STRIP = 1 << 16


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--pair", default="smol")
    asked.add_argument("--rows", type=numbers, default=[1, 8, 16])
    asked.add_argument("--contexts", type=numbers, default=[200, 512, 2000, 4000])
    asked.add_argument("--prompts", type=numbers, default=[], help="tokens of prompts to read")
    asked.add_argument("--kernels", default="native", help="processors' names, or folders of the kernels' C")
    asked.add_argument("--threads", type=int, default=2)
    asked.add_argument("--turns", type=int, default=15)
    measure(asked.parse_args())


def kernels_by_name(names: list[str]) -> dict[str, Any]:
    from specchat.models.cpu_kernels import build
    from specchat.models.cpu_kernels.kernels import Kernels

    own, found = build._FOLDER, {}
    for name in names:
        build._FOLDER = Path(name).resolve() if "/" in name else own
        found[name] = Kernels("native" if "/" in name else name)
    build._FOLDER = own
    return found


def measure(asked: argparse.Namespace) -> None:
    prepare_environment(asked.threads)
    from specchat.decoding.profiling import tree_of

    pair = load_pair(settings_in_force({"pair": asked.pair, "threads": asked.threads}))
    model: Any = pair.target.model
    network = model.network
    kernels = kernels_by_name(asked.kernels.split(","))
    trees = {rows: tree_of(rows, model.vocab_size) for rows in asked.rows}
    passes: dict[tuple[int, int, str], list[tuple[float, ...]]] = defaultdict(list)
    prompts: dict[tuple[int, str], list[tuple[float, ...]]] = defaultdict(list)

    def timed(what: Any) -> tuple[float, ...]:
        network.time_phases(True)
        began = time.perf_counter()
        what()
        took_s, phases = time.perf_counter() - began, network.phases()
        inside = [phases[name] for name in PHASES]
        return took_s, *inside, took_s - sum(inside)

    for turn in range(WARM_UP + asked.turns):
        order = list(kernels)[:: 1 if turn % 2 else -1]
        for context in asked.contexts:
            for rows in asked.rows[:: 1 if turn % 2 else -1]:
                for name in order:
                    network._kernels = kernels[name]
                    model.fill_for_benchmark(context)
                    model.read(trees[rows])  # a build's first pass after another's finds cold instructions
                    model.fill_for_benchmark(context)
                    took = timed(lambda rows=rows: model.read(trees[rows]).logits[0].argmax().item())
                    if turn >= WARM_UP:
                        passes[context, rows, name].append(took)
        for tokens in asked.prompts if turn % 2 == 0 else ():
            for name in order:
                network._kernels = kernels[name]
                model.prefill(())
                took = timed(lambda tokens=tokens: model.prefill(list(range(1000, 1000 + tokens + 1))))
                prompts[tokens, name].append(took)
    report(passes, prompts, asked.rows[0])
    if prompts:
        report_floor(network, pair, prompts)


def report(passes: Any, prompts: Any, first: int) -> None:
    heads = " ".join(f"{name:>10}" for name in ("ms", *PHASES, "rest"))
    print(f"context rows {heads}  × {first} rows  kernels")
    for (context, rows, name), parts in passes.items():
        middle = [statistics.median(part) for part in zip(*parts, strict=True)]
        base = statistics.median(part[0] for part in passes[context, first, name])
        figures = " ".join(f"{1e3 * value:10.3f}" for value in middle)
        print(f"{context:7} {rows:4} {figures} {middle[0] / base:8.2f}    {name}")


def report_floor(network: Any, pair: Any, prompts: Any) -> None:
    import torch

    shape = network.shape
    weights = shape.layers * (
        2 * shape.hidden * shape.heads * shape.head_dim
        + 2 * shape.hidden * shape.kv_heads * shape.head_dim
        + 3 * shape.hidden * shape.inner
    )
    data = torch.zeros(256 * STRIP, dtype=torch.uint8)
    peak = statistics.median(network.floor(data)[1] for _ in range(5))
    print(f"\noperations on registers: {peak / 1e12:.2f} T a second; parts of reading a prompt in ms a thousand tokens")
    print("prompt  tokens/s  products/peak  " + " ".join(f"{name:>10}" for name in (*PHASES, "rest")) + "  kernels")
    for (tokens, name), parts in prompts.items():
        middle = [statistics.median(part) for part in zip(*parts, strict=True)]
        rate = tokens / middle[0]
        figures = " ".join(f"{1e6 * value / tokens:10.2f}" for value in middle[1:])
        print(f"{tokens:6} {rate:9.0f} {2 * weights * rate / peak:14.2f}  {figures}  {name}")


if __name__ == "__main__":
    main()
