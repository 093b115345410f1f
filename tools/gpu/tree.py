"""The cost of a pass by its rows: trees pay off where 64 rows take hardly longer than one."""

from __future__ import annotations

from typing import Any

from specchat.decoding.profiling import measure_costs
from tools.gpu.random_model import large, middling, random_model, random_prompt
from tools.gpu.results import Goal, Outcome, Results, table
from tools.gpu.setup import Setup

WANTED_RATIO = 1.15


def measure(setup: Setup, results: Results) -> Outcome:
    """Seconds of one verification by its rows, at a short and a long context, for two shapes."""
    found = [figures for shape in (middling(setup), large(setup)) for figures in _of_shape(setup, *shape)]
    ratio_name = f"{setup.extent.wide_rows} rows / 1"
    columns = ("model", "context", *(f"{count} rows, ms" for count in setup.extent.rows), ratio_name)
    goals = [
        Goal(f"{figures['model']}, {figures['context']} tokens, {ratio_name}", figures["ratio"], WANTED_RATIO, False)
        for figures in found
    ]
    return Outcome(
        figures={"verify": found},
        tables=(
            table("Verification, from the tree to the first logits on the host", columns, [_row(f) for f in found]),
        ),
        goals=tuple(goals),
    )


def _of_shape(setup: Setup, name: str, config: Any) -> list[dict[str, Any]]:
    model = random_model(setup, config, setup.precision)
    found = []
    for context_tokens in setup.extent.contexts:
        model.prefill(random_prompt(model, context_tokens))  # so that the cache holds numbers, not zeros
        costs = measure_costs(model, None, verify_rows=setup.extent.rows, context_tokens=context_tokens)
        assert costs is not None, "the measurement was not interrupted"
        seconds = dict(costs.verify)
        ratio = seconds[setup.extent.wide_rows] / seconds[1]
        found.append({"model": name, "context": context_tokens, "seconds": list(costs.verify), "ratio": ratio})
    return found


def _row(figures: dict[str, Any]) -> tuple[str, ...]:
    times = [f"{1e3 * seconds:.2f}" for _, seconds in figures["seconds"]]
    return (figures["model"], str(figures["context"]), *times, f"{figures['ratio']:.3f}")
