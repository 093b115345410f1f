"""A training in the background: what was asked for, how far it is, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta, Struct

from specchat.engine.protocol.bounds import Name
from specchat.engine.protocol.training_report import Judged, Needed, Reached, Report, Trained
from specchat.models.inspect.training_limits import CHATS

Phase = Literal["running", "paused", "stopping", "done", "stopped", "failed"]


class TrainingChoices(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be trained; the words of `specchat train`."""

    pair: Name
    drafter: Name
    prompts: Name
    tokens: Annotated[int, Meta(ge=1, le=10**10)]
    hours: Annotated[float, Meta(ge=0, lt=10_000)]
    name: Name
    start: Name = ""  # the drafter with whose weights it begins

    def words(self, *, resume: bool) -> list[str]:
        """The command that trains this in the background, on one thread; who asked for chats has agreed."""
        words = ["train", self.pair, f"--drafter={self.drafter}", f"--prompts={self.prompts}"]
        words += [f"--tokens={self.tokens}", f"--hours={self.hours:g}", f"--name={self.name}", "--threads=1"]
        words += [f"--from={self.start}"] * bool(self.start)
        words += ["--yes"] * (self.prompts == CHATS) + ["--resume"] * resume
        return [*words, "--output=jsonl", "--stop-at-eof"]


@dataclass
class Training:
    """One training, from its start to the user's answer to its verdict."""

    request: TrainingChoices
    phase: Phase = "running"
    needed: Needed | None = None
    reached: dict[str, Reached] = field(default_factory=dict)  # the last report of each stage
    measured_tau: list[float] = field(default_factory=list)  # as it rises
    trained: Trained | None = None
    judged: Judged | None = None
    problem: str = ""
    used: bool = False  # from now on

    @property
    def ended(self) -> bool:
        return self.phase in ("done", "stopped", "failed")

    @property
    def stage(self) -> Reached | None:
        """The stage it is in."""
        return list(self.reached.values())[-1] if self.reached else None

    def apply(self, report: Report) -> None:
        """Take over one report."""
        match report:
            case Needed():
                self.needed = report
            case Reached():
                self.reached[report.stage] = report
                if report.tau is not None and [report.tau] != self.measured_tau[-1:]:
                    self.measured_tau.append(report.tau)
            case Trained():
                self.trained = report
            case Judged():
                self.judged = report
