"""`--floor`: checks that under `goodput` no drafter and no tree policy is slower than plain decoding."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from specchat.bench.configurations import AUTO, separate
from specchat.bench.intervals import Interval
from specchat.bench.report import Report
from specchat.drafters import DRAFTERS
from specchat.errors import UsageError, nearest
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

FLOOR = 0.97
"""The least accepted ratio to plain decoding: trials and a busy machine cost a few per cent."""


@dataclass(frozen=True)
class Standing:
    """One combination's ratio to plain decoding."""

    name: str
    ratio: Interval

    @property
    def below(self) -> bool:
        return self.ratio.value < FLOOR


def floor_comparison(
    text: str, base: Settings, has_draft_model: bool, trained: Collection[str] = (), datastore: bool = False
) -> str:
    """Every drafter × policy under `goodput`, as `--compare` names configurations.

    Args:
        has_draft_model: whether the pair has one.
        trained: drafters that there are trained weights for.
        datastore: whether there is one with the target's tokens.
        text: `auto` for all of them, or a part, such as `"suffix,token_recycling:template:nodes=80"`.

    Raises:
        UsageError: a word that names neither a drafter nor, after one, a policy.
    """
    usable = [
        name
        for name, method in DRAFTERS.items()
        if (has_draft_model or not method.needs_draft_model)
        and (name in trained or not method.needs_weights)
        and (datastore or not method.needs_datastore)
    ]
    return ",".join(name for piece in separate(text) for name in _combinations(piece, base, usable))


def standings(report: Report) -> list[Standing]:
    """What was measured of them, the slowest first."""
    found = [
        Standing(result.name, group.ratio)
        for run in report.runs
        for result in run.results
        if result.kind == "ours" and (group := result.group()) is not None
    ]
    return sorted(found, key=lambda standing: standing.ratio.value)


def floor_lines(report: Report) -> list[str]:
    """A line for each combination, then how many are too slow."""
    found = standings(report)
    below = sum(standing.below for standing in found)
    lines = [f"{_ratio(standing.ratio):<20} {standing.name}{'  below' * standing.below}" for standing in found]
    verdict = f"{below} of {len(found)} below {FLOOR} × plain" if below else f"none below {FLOOR} × plain"
    return [*lines, verdict]


def _combinations(piece: str, base: Settings, usable: Sequence[str]) -> list[str]:
    words = piece.split(":")
    names, values = [w for w in words if "=" not in w], [w for w in words if "=" in w]
    if not names or len(names) > 2:
        raise UsageError(
            f"--floor: {piece!r} must be {AUTO}, or drafter[:policy][:key=value…]; the controller is goodput"
        )
    drafters = [name for name in usable if name != "none"] if names[0] == AUTO else [names[0]]
    policies = names[1:] or list(TREE_POLICIES)
    for name, table in ((drafters[0], DRAFTERS), (policies[0], TREE_POLICIES)):
        if name not in table:
            raise UsageError(f"--floor: no {table.family} is called {name!r}{nearest(name, table)}")
    return [":".join([d, p, base.rule, "goodput", *values]) for d in drafters for p in policies]


def _ratio(ratio: Interval) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f}  {ratio.low:.2f} to {ratio.high:.2f}"
