"""Plain decoding at an 8B model's cost, against what the memory's bandwidth allows."""

from __future__ import annotations

from typing import Any

from specchat.errors import UsageError
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.recorded_network import GraphNetwork
from specchat.models.machine import choose_precision
from tools.gpu.bandwidth import bandwidth_of
from tools.gpu.random_model import large, random_model, random_prompt, read_bytes
from tools.gpu.results import Goal, Outcome, Results, table
from tools.gpu.rounds import PLAIN, Running
from tools.gpu.setup import Setup

WANTED_SHARE = 0.85


def measure(setup: Setup, results: Results) -> Outcome:
    """Tokens per second of rounds whose budget is 0, in every number format there is here."""
    allowed = bandwidth_of(setup, results)
    offered, notes = _offered(setup)
    found = [figures for precision in offered for figures in _in_precision(setup, precision, allowed)]
    columns = (
        "model",
        "number format, kernels",
        "context",
        "tok/s",
        "GB a token",
        "GB/s",
        "of the bandwidth",
        "replayed",
    )
    plain = [figures for figures in found if figures["precision"] == setup.precision]
    goals = [
        Goal(f"plain decoding, share of the bandwidth at {figures['context']} tokens", figures["share"], WANTED_SHARE)
        for figures in plain
    ]
    return Outcome(
        figures={"bandwidth": allowed, "decoding": found},
        tables=(table("Plain decoding", columns, [_row(figures) for figures in found]),),
        goals=tuple(goals),
        notes=tuple(notes),
    )


def _in_precision(setup: Setup, precision: str, allowed: float) -> list[dict[str, Any]]:
    name, config = large(setup)
    model = random_model(setup, config, precision)
    about = {"model": name, "precision": precision, "kernels": model.network.kernels}
    return [about | _at(setup, model, precision, context, allowed) for context in setup.extent.contexts]


def _at(setup: Setup, model: Decoder, precision: str, context_tokens: int, allowed: float) -> dict[str, Any]:
    running = Running.begin(model, PLAIN, random_prompt(model, context_tokens))
    running.run(setup.extent.warm_rounds)
    began, before = len(running.context.history), _passes(model)
    stretch = running.run(setup.extent.rounds)
    replayed, passes = (now - then for now, then in zip(_passes(model), before, strict=True))
    needed = read_bytes(model, precision, (began + len(running.context.history)) // 2)
    rate = needed / stretch.round_s
    return {
        "context": context_tokens,
        "tokens_per_s": 1 / stretch.round_s,
        "bytes_per_token": needed,
        "bytes_per_s": rate,
        "share": rate / allowed,
        "replayed": replayed / passes,
    }


def _passes(model: Decoder) -> tuple[int, int]:
    """How many passes were replays of a recording, and how many there were."""
    network = model.network
    return network.replayed if isinstance(network, GraphNetwork) else 0, model.counters.passes


def _offered(setup: Setup) -> tuple[list[str], list[str]]:
    offered, notes = [setup.precision], []
    for precision in ("int8", "int4"):
        try:
            offered.append(choose_precision(precision, setup.device, quantised=False, own=True))
        except UsageError as error:
            notes.append(f"{precision} is left out: {error}")
    return offered, notes


def _row(figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        figures["model"],
        f"{figures['precision']}, {figures['kernels']}",
        str(figures["context"]),
        f"{figures['tokens_per_s']:.1f}",
        f"{figures['bytes_per_token'] / 1e9:.2f}",
        f"{figures['bytes_per_s'] / 1e9:.0f}",
        f"{100 * figures['share']:.1f} %",
        f"{100 * figures['replayed']:.0f} %",
    )
