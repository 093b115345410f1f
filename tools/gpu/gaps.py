"""The device's idle share of a round, and where the host's time goes."""

from __future__ import annotations

from typing import Any

from specchat.models.decoder.decoder import Decoder
from tools.gpu.random_model import large, random_model, random_prompt
from tools.gpu.results import Goal, Outcome, Results, table
from tools.gpu.rounds import PLAIN, Running, wide_trees
from tools.gpu.setup import HOST_PARTS, WAIT, HostClock, Setup, busy_s

WANTED_IDLE = 0.03

_PROFILED_ROUNDS = 16
"""Recording every kernel slows a program down and fills memory, so it is done for a few rounds that are not timed."""


def measure(setup: Setup, results: Results) -> Outcome:
    """Plain rounds and rounds of wide trees, greedy and at temperature 0.8."""
    name, config = large(setup)
    model = random_model(setup, config, setup.precision)
    wide = wide_trees(setup.extent.nodes)
    ways = {
        "plain, greedy": dict(PLAIN),
        f"{setup.extent.nodes} nodes and the root, greedy": wide,
        f"{setup.extent.nodes} nodes and the root, temperature 0.8": wide | {"temperature": 0.8},
    }
    found = [{"way": way, **_of(setup, model, changes)} for way, changes in ways.items()]
    how = "kernels and copies" if all(f["recorded"] for f in found) else "passes, from begun to done"
    host = [*HOST_PARTS, WAIT, "rest"]
    return Outcome(
        figures={"model": name, "rounds": found},
        tables=(
            table(f"A round of the {name}", ("", "nodes", "ms", f"device busy ({how}), ms", "idle"), _rows(found)),
            table(
                "The host in a round, ms (`verify` hands the pass over, `wait` is until the device is done)",
                ("", *host),
                [(f["way"], *(f"{1e3 * f['host_s'].get(part, 0.0):.3f}" for part in host)) for f in found],
            ),
        ),
        goals=tuple(Goal(f"idle share, {f['way']}", f["idle"], WANTED_IDLE, False) for f in found[1:]),
    )


def idle_share(round_s: float, busy_per_round_s: float) -> float:
    """The share of a round in which the device does nothing."""
    return max(0.0, 1.0 - busy_per_round_s / round_s)


def _rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One line for each way of decoding."""
    return [
        (
            f["way"],
            f"{f['nodes']:.1f}",
            f"{1e3 * f['round_s']:.2f}",
            f"{1e3 * f['busy_s']:.2f}",
            f"{100 * f['idle']:.1f} %",
        )
        for f in found
    ]


def _of(setup: Setup, model: Decoder, changes: dict[str, Any]) -> dict[str, Any]:
    """Three stretches of one text: as it is, with kernels recorded, with the host's calls timed."""
    running = Running.begin(model, changes, random_prompt(model, setup.extent.contexts[0]))
    running.run(setup.extent.warm_rounds)
    stretch = running.run(setup.extent.rounds)
    count = min(_PROFILED_ROUNDS, setup.extent.rounds)
    recorded = busy_s(lambda: running.run(count), model.device)
    clock = HostClock()
    timed = running.run(count, clock.on(running.speculator, model.device))
    host_s = clock.medians
    # Without a record, the device is taken to be busy from when a pass is begun until it is done.
    busy = recorded / count if recorded is not None else host_s["verify"] + host_s[WAIT]
    return {
        "nodes": stretch.mean_nodes,
        "round_s": stretch.round_s,
        "busy_s": busy,
        "recorded": recorded is not None,
        "idle": idle_share(stretch.round_s, busy),
        "host_s": host_s | {"rest": max(0.0, timed.round_s - sum(host_s.values()))},
    }
