"""The user's own proof, on their machine and with their pair: speculation changes nothing but the waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specchat.bench.machine import Circumstances, circumstances
from specchat.settings import Settings


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Args:
        prompts: whose greedy texts are compared.
        tokens: of each greedy text.
        seeds: how many sampled texts are compared.
        sampled_tokens: of each sampled text.
        twin_tokens: drafted for by the target itself.
        adversary_tokens: written against a drafter that is always wrong.
        samples: of the first two tokens, for the test of the law.
    """

    prompts: int
    tokens: int
    seeds: int
    sampled_tokens: int
    twin_tokens: int
    adversary_tokens: int
    samples: int


EFFORTS = {
    "small": Effort(prompts=2, tokens=32, seeds=1, sampled_tokens=24, twin_tokens=24, adversary_tokens=16, samples=200),
    "full": Effort(prompts=8, tokens=96, seeds=6, sampled_tokens=64, twin_tokens=96, adversary_tokens=64, samples=1200),
}
"""By the names that `--budget` takes."""

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Finding:
    """What one check found, in a sentence and in figures."""

    claim: str
    status: str
    detail: str
    figures: dict[str, Any] = field(default_factory=dict)


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
        return all(finding.status != FAILED for finding in self.findings)


def prove(settings: Settings, effort: Effort, say: Callable[[str], None] = lambda what: None) -> Proof:
    """Load the pair and check every claim that the combination makes."""
    from specchat.bench.loaded import load_pair
    from specchat.bench.proof.check_law import check_law
    from specchat.bench.proof.check_text import check_adversary, check_greedy, check_seeded, check_twin
    from specchat.bench.proof.subject import Subject

    say(f"loading {settings.pair}")
    pair = load_pair(settings, say)
    subject = Subject.of(pair, settings, effort)
    findings: list[Finding] = []
    for check in (check_greedy, check_seeded, check_twin, check_adversary, check_law):
        say(f"{1 + len(findings)} of 5: {(check.__doc__ or '').splitlines()[0]}")
        findings.append(check(subject))
    names = ("drafter", "policy", "rule", "controller", "width", "depth", "nodes")
    return Proof(
        pair=pair.name,
        target=pair.target.name,
        draft=pair.draft.name if pair.draft else None,
        precision=pair.precision,
        device=str(pair.device),
        settings={name: getattr(settings, name) for name in names},
        findings=tuple(findings),
        circumstances=circumstances(),
    )
