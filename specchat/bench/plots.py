"""A report as pictures: speed-up by category, τ against the size of the tree, what verifying costs by rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specchat.bench.report import ALL, Report, Result, Run
from specchat.errors import UsageError, installs, os_errors_as

Curve = tuple[str, str, Sequence[tuple[int, float]]]
"""A title, what is counted along it, and its points: (size, seconds)."""

SUFFIXES = (".png", ".svg", ".pdf")

_MOST_APART = 8
"""Of more configurations bars and their legend cannot be read; then only acceptance length by size is drawn."""


def accept_plot_file(file: Path) -> None:
    """Refuse early what could not be drawn in the end.

    Raises:
        UsageError: a suffix that is not a picture format, a folder that is not there, or matplotlib missing.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {file} must end in {', '.join(SUFFIXES)}")
    if not os.path.isdir(file.absolute().parent):  # never raises
        raise UsageError(f"--plot {file}: the folder {file.absolute().parent} does not exist")
    _figure_class()


def draw(report: Report, file: Path) -> None:
    """Write the pictures that the report has figures for, one row for each precision.

    Raises:
        UsageError: nothing can be drawn of this report.
    """
    panels: list[tuple[Run, Callable[[Any, Run], None]]] = []
    for run in report.runs:
        readable = len(run.results) <= _MOST_APART or not any(len(points) > 1 for points in _by_size(run).values())
        if readable and any(result.kind != "plain" and result.groups for result in run.results):
            panels.append((run, _speed_up))
        if any(len(points) > 1 for points in _by_size(run).values()):
            panels.append((run, _acceptance_length))
        if readable and any(len(_costs(result)) > 1 for result in run.results):
            panels.append((run, _verify_cost))
    if not panels:
        raise UsageError("there is nothing to draw: no configuration besides plain decoding was measured")
    figure = _figure_class()(figsize=(11, 4 * len(panels)), layout="constrained")
    for axes, (run, panel) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        panel(axes, run)
        axes.spines[["top", "right"]].set_visible(False)
    about = report.circumstances
    figure.supxlabel(f"{about.accelerator or about.processor} · {report.workload} · {about.made[:10]}", fontsize=8)
    with os_errors_as(UsageError, f"--plot {file} cannot be written"):
        figure.savefig(file, dpi=150)


def draw_costs(title: str, curves: Sequence[Curve], file: Path) -> None:
    """Write the curves of what passes cost, beside each other: (title, unit, points of (size, seconds)) each.

    Raises:
        UsageError: the file cannot be written.
    """
    figure = _figure_class()(figsize=(5 * len(curves), 4), layout="constrained")
    for axes, (name, unit, points) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        axes.plot([size for size, _ in points], [1000 * seconds for _, seconds in points], marker=".")
        axes.set(title=name, xlabel=unit, ylabel="ms", ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    with os_errors_as(UsageError, f"--plot {file} cannot be written"):
        figure.savefig(file, dpi=150)


def _speed_up(axes: Any, run: Run) -> None:
    """Bars by category with their 95 % ranges; the line at 1 is plain decoding."""
    others = [result for result in run.results if result.kind != "plain" and result.groups]
    names = [group.category for group in others[0].groups]
    width = 0.8 / len(others)
    for number, result in enumerate(others):
        shown = [(place, group) for place, name in enumerate(names) if (group := result.group(name)) is not None]
        ratios = [group.ratio for _, group in shown]
        errors = [
            [r.value - (r.value if r.low is None else r.low) for r in ratios],
            [(r.value if r.high is None else r.high) - r.value for r in ratios],
        ]
        places = [place + (number - (len(others) - 1) / 2) * width for place, _ in shown]
        axes.bar(places, [r.value for r in ratios], width * 0.9, yerr=errors, capsize=2, label=result.name)
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set_xticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set_ylabel("times plain decoding")
    plain = run.plain.group(ALL) if run.plain else None
    speed = plain.tokens_per_s if plain else 0.0
    axes.set_title(f"{run.target}, {run.dtype}: plain {speed:.1f} tokens/s", fontsize=10)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _acceptance_length(axes: Any, run: Run) -> None:
    """τ by tree size, one line for each combination of methods that was measured in several sizes."""
    lines = {name: points for name, points in _by_size(run).items() if len(points) > 1}
    for name, points in lines.items():
        axes.plot([nodes for nodes, _ in points], [tau for _, tau in points], marker="o", label=name)
    axes.set(xlabel="draft nodes in a tree", ylabel="acceptance length τ")
    axes.set_title(f"{run.target}, {run.dtype}", fontsize=10)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _verify_cost(axes: Any, run: Run) -> None:
    """Mean time of the target's pass by its number of rows, as it was met while measuring."""
    for result in run.results:
        if costs := _costs(result):
            axes.plot([r for r, _ in costs], [1000 * s for _, s in costs], marker=".", label=result.name)
    axes.set(xlabel="rows in one pass of the target", ylabel="milliseconds", ylim=(0, None))
    axes.set_title(f"{run.target}, {run.dtype}: what verifying costs", fontsize=10)
    axes.legend(fontsize=8)


def _by_size(run: Run) -> dict[str, list[tuple[int, float]]]:
    """Combination of methods → (draft nodes, τ), smallest trees first."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for result in run.results:
        group = result.group(ALL)
        if result.kind == "ours" and group is not None and group.acceptance_length is not None:
            warm = " (warm)" if result.name.endswith("(warm)") else ""
            name = f"{result.settings['drafter']} {result.settings['policy']}{warm}"
            lines.setdefault(name, []).append((int(result.settings["nodes"]), group.acceptance_length))
    return {name: sorted(points) for name, points in lines.items()}


def _costs(result: Result) -> list[tuple[int, float]]:
    group = result.group(ALL)
    return [(rows, seconds) for rows, (_, seconds) in group.verify_by_rows.items()] if group else []


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(f"--plot needs matplotlib, which is not installed: {installs('bench')}") from None
    return Figure
