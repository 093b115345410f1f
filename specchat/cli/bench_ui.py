"""`specchat bench ui`: what the app costs on this machine, against its budgets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from specchat.cli.flags import Output
from specchat.errors import UsageError

if TYPE_CHECKING:
    from specchat.tui.bench.budgets import BudgetFinding

_FORMS: dict[str, Callable[[float], str]] = {
    "s": lambda value: f"{value * 1000:.1f} ms",
    "cores": lambda value: f"{value * 100:.1f} % of a core",
    "bytes": lambda value: f"{value / 1e6:.1f} MB",
    "bytes/s": lambda value: f"{value / 1e3:.1f} kB/s",
}


def bench_ui(settings: dict[str, Any], output: Output) -> bool:
    """Measure, print a table or one JSON object; says whether every budget was kept."""
    if sys.platform == "win32":
        raise UsageError("`specchat bench ui` needs pseudo-terminals, which Windows does not have")
    from specchat.bench.circumstances import circumstances
    from specchat.tui.bench.budgets import engine_with_app, findings

    found: list[BudgetFinding] = []
    for finding in chain(findings(_say), engine_with_app(_say, settings) if "pair" in settings else ()):
        found.append(finding)
        if output is Output.text:
            _say("")
            print(line_of(finding), flush=True)
    about = asdict(circumstances())
    if output is Output.text:
        print(f"{about['processor']}, {about['cores']} cores, load {about['load_average']:.1f} · {about['made']}")
        print(f"commit {about['commit']} · {about['command']}")
    else:
        results = [{**asdict(finding), "kept": finding.within_budget} for finding in found]
        print(json.dumps({"circumstances": about, "findings": results}))
    return all(finding.within_budget is not False for finding in found)


def line_of(finding: BudgetFinding) -> str:
    """One line: what it is, the figure, the budget, the verdict."""
    budget = "" if finding.budget is None else f"≤ {_shown(finding.budget, finding.unit)}"
    verdict = {True: "kept", False: "NOT KEPT", None: ""}[finding.within_budget]
    return f"{finding.name:52} {_shown(finding.value, finding.unit):>18}  {budget:20} {verdict}".rstrip()


def _shown(value: float, unit: str) -> str:
    return _FORMS[unit](value) if unit in _FORMS else f"{value:.2f} {unit}"


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)
    elif what:
        print(what, file=sys.stderr)
