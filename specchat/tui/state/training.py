"""A training in the background: what was asked for, how far it is, what came of it, and all of this as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta, Struct

from specchat.engine.protocol.bounds import Name
from specchat.engine.protocol.text import one_line
from specchat.engine.protocol.training_report import (
    STAGES,
    Judged,
    Needed,
    Reached,
    Report,
    Trained,
    curve_lines,
    learnt_lines,
    span,
    table_lines,
    verdict_line,
)
from specchat.training.limits import CHATS
from specchat.tui.text import numbers
from specchat.tui.text.cells import Run, ScreenLine, bar, clip, cut, paragraph, spark, width_of

TrainingPhase = Literal["running", "paused", "stopping", "done", "stopped", "failed"]


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
    phase: TrainingPhase = "running"
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
        return list(self.reached.values())[-1] if self.reached else None

    def apply(self, report: Report) -> None:
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


_LABEL = 11
_FEWEST_CURVE_LINES = 3


def short_text(training: Training, *, wide: bool) -> Run:
    """How far it is, or how it ended: `▸ learning 42 % · τ 1.61 · 12 min`."""
    name = one_line(training.request.name)
    match training.phase:
        case "failed":
            return ("✕ not trained: /train", "bad")
        case "stopped":
            return (f"■ {name} stopped: /train" if wide else "■ stopped: /train", "dim")
        case "done":
            return (f"✓ {name} is trained: /train" if wide else "✓ trained: /train", "good")
        case "stopping":
            return ("■ stopping", "dim")
    mark, stage = "‖" if training.phase == "paused" else "▸", training.stage
    if stage is None:
        return (f"{mark} training", "dim")
    share = _percent(stage) if stage.total else ""
    tau = f"τ {training.measured_tau[-1]:.2f}" if training.measured_tau else ""
    left = "" if stage.left_s is None else span(stage.left_s)
    words = (f"{stage.stage} {share}".strip(), tau, left) if wide else (share or stage.stage, tau)
    return (f"{mark} {' · '.join(word for word in words if word)}", "dim" if training.phase == "paused" else "bonus")


def training_lines(training: Training, width: int, height: int) -> list[ScreenLine]:
    """Everything there is to say, within this size; of the curve as many points as there is room for."""
    head = [*_stage_lines(training, width), *_needs(training, width)]
    tail = [*_measured(training, width), *_outcome(training, width)]
    room = height - len(head) - len(tail) - 1
    learnt = _learnt(training, width, room) if training.ended else []
    curve = _curve(training, width, room - len(learnt)) if training.ended else []
    gap: list[ScreenLine] = [[("", "")]] if learnt or tail or curve else []
    return [clip(line, width) for line in [*head, *gap, *curve, *learnt, *tail]]


def _stage_lines(training: Training, width: int) -> list[ScreenLine]:
    now = training.stage
    reached = training.reached
    last = max((STAGES.index(name) for name in reached), default=-1)
    lines = []
    for place, name in enumerate(STAGES):
        report = reached.get(name)
        current = place == last and now is not None and not training.ended
        done = place < last or (place == last and training.phase == "done")
        mark: Run = ("✓ ", "good") if done else ("‖ " if training.phase == "paused" else "▸ ", "bonus")
        if not done and not current:
            mark = ("○ ", "dim") if place != last else ("■ ", "dim")
        line: ScreenLine = [mark, (name.ljust(_LABEL - 2), "text" if current else "dim")]
        lines.append([*line, *(_current(report, width - _LABEL) if current and report else _past(report, width))])
    return lines


def _current(report: Reached, width: int) -> ScreenLine:
    """A bar, how long the stage still takes, and what it says."""
    line: ScreenLine = []
    if report.total:
        done = bar(report.done / report.total, max(4, min(18, width // 4)))
        line = [(done, "bar"), (f" {_percent(report):>5}", "text")]
    if report.left_s is not None:
        line.append((f"  {span(report.left_s)} left", "text"))
    if report.stage != "learning" and report.says:
        gap = "  " if line else ""
        line.append((gap + cut(one_line(report.says), max(1, width - width_of(line) - len(gap))), "dim"))
    return line


def _past(report: Reached | None, width: int) -> ScreenLine:
    if report is None or report.stage in ("loading", "learning", "measuring"):
        return []
    return [(cut(one_line(report.says), width - _LABEL), "dim")] if report.says else []


def _needs(training: Training, width: int) -> list[ScreenLine]:
    if (needed := training.needed) is None:
        return []
    disk, memory = numbers.size(needed.disk_bytes), numbers.size(needed.memory_bytes)
    text = f"takes {disk} of disk and {memory} of memory; {needed.weights / 1e6:.1f} million numbers to learn"
    return [[(cut(text, width), "dim")]]


def _measured(training: Training, width: int) -> list[ScreenLine]:
    """τ as it rises, and how often guesses are right by depth, on texts that are never learnt from."""
    if not training.measured_tau or training.judged is not None:
        return []
    shown = training.measured_tau[-max(1, width - _LABEL - 14) :]
    lines: list[ScreenLine] = [
        [("τ".ljust(_LABEL), "dim"), (f"{shown[-1]:.2f}", "bonus"), (" best ", "dim"),
         (f"{max(training.measured_tau):.2f}  ", "text"), (spark([tau - 1.0 for tau in shown]), "accepted")]
    ]  # fmt: skip
    learning = training.reached.get("learning")
    if learning is not None and learning.by_depth:
        shares = " ".join(f"{share:.2f}" for share in learning.by_depth)
        lines.append([("by depth".ljust(_LABEL), "dim"), (shares, "text")])
    return lines


def _curve(training: Training, width: int, room: int) -> list[ScreenLine]:
    if training.trained is None or room < _FEWEST_CURVE_LINES:
        return []
    heading: ScreenLine = [(cut("τ on texts it never learnt from, by tokens seen", width), "dim")]
    return [heading, *([(line, "accepted")] for line in curve_lines(training.trained.curve, room - 2)), [("", "")]]


def _learnt(training: Training, width: int, room: int) -> list[ScreenLine]:
    """τ before and after, and guesses that changed, as many as there is room for."""
    if training.trained is None:
        return []
    lines = [paragraph(line, width, "text") for line in learnt_lines(training.trained)]
    while lines and sum(map(len, lines)) >= room:
        lines.pop()
    return [*(line for told in lines for line in told), *([[("", "")]] if lines else [])]


def _outcome(training: Training, width: int) -> list[ScreenLine]:
    name, pair = one_line(training.request.name), one_line(training.request.pair)
    match training.phase:
        case "failed":
            return paragraph(f"✕ {one_line(training.problem)}", width, "bad")
        case "stopped":
            kept = "what was done is kept"
            if training.trained is not None:
                kept = f"the best is kept as {name}, τ {training.trained.tau:.2f}"
            return paragraph(f"stopped; {kept}; /train resume goes on", width, "text")
        case "done" if training.judged is None:
            said = f"{name} is trained, and was not measured: the training was paused each time"
            return paragraph(said, width, "text")
        case "paused":
            return paragraph("paused while the engine is busy", width, "dim")
        case _ if training.judged is None:
            return []
    judged = training.judged
    best = judged.best and f"{judged.best}  "
    lines: list[ScreenLine] = [
        [(one_line(text), "strong" if best and text.startswith(best) else "text")] for text in table_lines(judged)
    ]
    lines += paragraph(one_line(verdict_line(judged, name, pair)), width, "good" if judged.best else "text")
    if training.used:
        lines += paragraph("used from now on", width, "good")
    elif judged.best and training.ended:
        lines += paragraph("use it from now on?", width, "strong")
    return lines


def _percent(report: Reached) -> str:
    return numbers.percent(min(1.0, report.done / report.total))


def estimate_text(disk_bytes: int, seconds: float, free_bytes: int) -> Sequence[Run]:
    """What a training would take: `about 33 min of one core and 3.3 GB of disk`."""
    words = f"about {span(seconds)} of one core, longer while you chat, and {numbers.size(disk_bytes)} of disk"
    free = f"; {numbers.size(free_bytes)} are free"
    return [(words, "text"), (free, "dim" if disk_bytes < free_bytes else "bad")]
