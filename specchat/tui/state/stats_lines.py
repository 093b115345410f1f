"""The figures of a reply as lines: a pure function of the facts and the size."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from specchat.engine.client.speedup import source_of
from specchat.engine.protocol.events import Losslessness, RoundDone
from specchat.engine.protocol.text import visible
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.setting_effect import SettingEffect
from specchat.tui.system.processes import CoreShares
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, bar, cut, spark, width_of, wrapped_lines

_LABEL = 9


@dataclass(frozen=True)
class StatsFacts:
    """The facts that the panel can show; None and 0 mean unknown."""

    figures: Figures | None = None
    loss: Losslessness | None = None
    context_tokens: int | None = None
    context_limit: int = 0
    memory_bytes: int = 0
    writing: bool = False
    effect: SettingEffect | None = None  # of the last change of settings
    shares: CoreShares | None = None  # of this machine's cores, while a reply is written
    plan: str = ""  # what the controller chose for the last round, and why
    streaming: str = ""  # which layers stay in memory, and how much is read each pass


def plan_of(round: RoundDone | None) -> str:
    """What the controller chose for a round, and why: `6 guesses: a guess pays from 21 %`."""
    if round is None or not round.why:
        return ""
    drafted = len(round.tree.tokens) - 1
    nothing = "nothing guessed" if round.budget.get("nodes") else "plain"
    chosen = nothing if drafted <= 0 else numbers.guesses(drafted)
    return f"{chosen}: {visible(round.why)}"


def stats_lines(facts: StatsFacts, width: int, height: int) -> list[ScreenLine]:
    """As many lines as fit by their rank, in reading order; lines of one rank are shown together or not at all."""
    entries = _all_lines(facts, width)
    counts = Counter(rank for rank, _ in entries)
    kept: set[int] = set()
    for rank in sorted(counts):
        if counts[rank] <= height:
            kept.add(rank)
            height -= counts[rank]
    return [line for rank, line in entries if rank in kept]


def _all_lines(facts: StatsFacts, width: int) -> list[tuple[int, ScreenLine]]:
    """Every line in reading order, each with its rank (lower is kept longer)."""
    entries: list[tuple[int, ScreenLine]] = []
    figures = facts.figures
    if figures is not None and figures.rounds:
        entries.append((0, _fitted(_speed(figures, facts.writing), width)))
        entries.append((1, _fitted(_speedup(figures, width), width)))
        if figures.drafted:
            entries.append((3, _fitted(_acceptance(figures, width), width)))
            entries.append((4, _fitted(_share(figures), width)))
            entries += zip((6, 5), _depths(figures, width), strict=True)
        if facts.writing and facts.effect is not None and (did := facts.effect.figures(width - _LABEL)):
            entries.append((2, [*_label("change"), *did]))
        if facts.plan:
            entries += [(7, line) for line in _wrapped("plan", facts.plan, width)]
        entries += [(9 + i, line) for i, line in enumerate(_split(figures, width))]
    if facts.loss is not None:
        entries += zip((2, 15, 15), _lossless(facts.loss, width), strict=False)
    if facts.context_limit and facts.context_tokens is not None:
        entries.append((12, _context(facts.context_tokens, facts.context_limit, width)))
    if facts.shares is not None:
        used = f"engine {facts.shares.engine:.1f} · app {facts.shares.app:.2f}"
        entries.append((13, [*_label("cores"), (cut(used, max(1, width - _LABEL)), "text")]))
    if facts.memory_bytes:
        entries.append((14, [*_label("memory"), (numbers.size(facts.memory_bytes), "text")]))
    if facts.streaming:
        entries += [(14, line) for line in _wrapped("weights", visible(facts.streaming), width)]
    return entries


def _fitted(line: ScreenLine, width: int) -> ScreenLine:
    """The line without parts at its end that do not fit."""
    while len(line) > 2 and width_of(line) > width:
        line.pop()
    return line


def _label(text: str) -> ScreenLine:
    return [(text.ljust(_LABEL), "dim")]


def _speed(figures: Figures, writing: bool) -> ScreenLine:
    recent = figures.recent_tokens_per_s if writing else None
    now: ScreenLine = [] if recent is None else [(f"  now {numbers.rate(recent)}", "dim")]
    return [*_label("speed"), (f"{numbers.rate(figures.tokens_per_s)} tok/s", "strong"), *now]


def _speedup(figures: Figures, width: int) -> ScreenLine:
    if not figures.drafted:
        return [*_label("speed-up"), ("none: plain decoding", "dim")]
    speedup = figures.speedup
    source = source_of(speedup, figures.plain_rounds)
    if speedup is None:
        return [*_label("speed-up"), (source if _LABEL + len(source) <= width else "not known", "dim")]
    return [*_label("speed-up"), (speedup.text, "bonus"), (f"  {source}", "dim")]


def _acceptance(figures: Figures, width: int) -> ScreenLine:
    rounds = max(1, figures.rounds)
    kept = f"kept {figures.accepted / rounds:.1f} of {figures.drafted / rounds:.1f}"
    if _LABEL + width_of([(kept, "")]) > width:
        kept = kept.removeprefix("kept ")
    return [*_label("guesses"), (kept, "accepted"), (f"  τ {figures.acceptance_length:.1f}", "bonus"),
            (" a round", "dim")]  # fmt: skip


def _share(figures: Figures) -> ScreenLine:
    share = figures.accepted / figures.tokens if figures.tokens else 0.0
    return [*_label("text"), (f"{numbers.percent(share)} guessed", "text")]


def _depths(figures: Figures, width: int) -> tuple[ScreenLine, ScreenLine]:
    rates = figures.depths()[: max(1, (width - _LABEL) // 4)]
    depths = [(f"{depth:^3} ", "dim") for depth in range(1, len(rates) + 1)]
    return [*_label("depth"), *depths], [*_label("kept"), *((spark([r], 1.0) * 3 + " ", "accepted") for r in rates)]


def _split(figures: Figures, width: int) -> list[ScreenLine]:
    parts = figures.split_s()
    longest = max(seconds for _, seconds in parts) or 1.0
    room = max(3, min(18, width - _LABEL - 9))
    return [
        [*_label(name), (bar(seconds / longest, room), "bar"), (f"{numbers.milliseconds(seconds):>9}", "dim")]
        for name, seconds in parts
    ]


def _lossless(loss: Losslessness, width: int) -> list[ScreenLine]:
    """The badge, and why, in at most two lines more."""
    badge: ScreenLine = [(_badge(loss, width), "good" if loss.lossless else "warn")]
    reason = visible(loss.reason)
    if width_of(badge) + 2 + width_of([(reason, "")]) <= width:
        return [[*badge, ("  " + reason, "dim")]]
    return [badge, *([("  " + line, "dim")] for line in wrapped_lines(reason, max(1, width - 2), 2))]


def _badge(loss: Losslessness, width: int) -> str:
    """What the combination promises. Near-ties that may break the promise are named, in whatever words fit."""
    if not loss.lossless:
        return "! lossy"
    if not loss.near_ties:
        return "✓ lossless"
    ties = f", up to near-ties of {visible(loss.near_ties)}", ", up to near-ties", " ≈ near-ties"
    return "✓ lossless" + next((words for words in ties if len(words) + 10 <= width), " ≈")


def _wrapped(label: str, text: str, width: int) -> list[ScreenLine]:
    """All of a text, such as what the controller said, wrapped beside its label."""
    parts = wrapped_lines(text, max(8, width - _LABEL))
    return [[*_label("" if at else label), (part, "dim")] for at, part in enumerate(parts)]


def _context(tokens: int, limit: int, width: int) -> ScreenLine:
    used = f"{tokens:,} of {limit:,}"
    room = min(10, width - _LABEL - len(used) - 2)
    share = tokens / limit
    line: ScreenLine = [*_label("context")]
    if room >= 4:
        line.append((bar(share, room) + "  ", "warn" if share > 0.9 else "bar"))
    return [*line, (used, "text")]
