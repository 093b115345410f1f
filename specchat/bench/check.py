"""`specchat check`: on the user's machine and pair, speculation changes the speed and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specchat.bench.check_law import check_law, check_set_law
from specchat.bench.check_text import check_adversary, check_greedy, check_seeded, check_twin
from specchat.bench.checked_combination import FAILED, PASSED, SKIPPED, CheckedCombination, Effort, Finding
from specchat.bench.circumstances import Circumstances, circumstances
from specchat.bench.configurations import load_pair
from specchat.errors import UsageError
from specchat.settings import Settings


@dataclass(frozen=True)
class Proof:
    """All findings, about which combination, and where they were made."""

    pair: str
    target: str
    draft: str | None
    precision: str
    device: str
    settings: dict[str, Any]
    findings: tuple[Finding, ...]
    circumstances: Circumstances

    @property
    def ok(self) -> bool:
        """Whether no check failed; some may have been skipped."""
        return self._count(FAILED) == 0

    @property
    def summary(self) -> str:
        """How many checks failed, passed and were skipped, in one line."""
        failed, passed, skipped = (self._count(status) for status in (FAILED, PASSED, SKIPPED))
        total = len(self.findings)
        counted = f"all {total} checks passed" if passed == total else f"{passed} of {total} checks passed"
        if skipped:
            counted += f", {skipped} {'was' if skipped == 1 else 'were'} skipped"
        if failed:
            return f"{'A CHECK' if failed == 1 else f'{failed} CHECKS'} FAILED: {counted}"
        return counted

    def _count(self, status: str) -> int:
        return sum(finding.status == status for finding in self.findings)


def prove(settings: Settings, effort: Effort, say: Callable[[str], None] = lambda what: None) -> Proof:
    """Load the pair; check the text of the combination, and its rule with draft models made for the purpose.

    Raises:
        UsageError: the target is on another machine.
    """
    if settings.target_at:
        raise UsageError(
            f"target_at = {settings.target_at!r}: the checks look at the logits of earlier passes, which are not "
            "kept there; run specchat check on that machine, or set target_at to nothing"
        )
    say(f"loading {settings.pair}")
    pair = load_pair(settings, say)
    subject = CheckedCombination.of(pair, settings, effort)
    findings: list[Finding] = []
    sampled = check_seeded if settings.rule == "follow" else check_set_law
    for check in (check_greedy, sampled, check_twin, check_adversary, check_law):
        say(f"{1 + len(findings)} of 5: {(check.__doc__ or '').splitlines()[0]}")
        findings.append(check(subject))
    names = ("drafter", "policy", "rule", "controller", "width", "depth", "nodes")
    return Proof(
        pair=pair.name,
        target=pair.target.name,
        draft=pair.draft_names,
        precision=pair.precision,
        device=str(pair.device),
        settings={name: getattr(settings, name) for name in names},
        findings=tuple(findings),
        circumstances=circumstances(),
    )
