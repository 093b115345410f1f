"""From measured replies to figures, per category and in total, with confidence intervals."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specchat.bench.check_text import SameText
from specchat.bench.circumstances import Circumstances, PeakMemory
from specchat.bench.measured_reply import Interval, Measured, ratio_of_totals

ALL = "all"
"""The group of every question."""


@dataclass(frozen=True)
class Group:
    """One contestant over the questions of one category, against plain decoding of the same prompts.

    Args:
        tokens_per_s: all tokens through all decoding time; `median_tokens_per_s` is over replies.
        ratio: time plain decoding took over time this took, at equal numbers of tokens.
        with_prompt: the same with the reading of the prompt in both times.
        acceptance_by_depth: of the rounds that drafted so deep, the share that accepted so deep.
        draft_share, verify_share, other_share: of the decoding time.
        verify_by_rows: rows in a pass → (passes, mean seconds).
    """

    category: str
    replies: int
    tokens: int
    tokens_per_s: float
    median_tokens_per_s: float
    prompt_tokens_per_s: float
    ratio: Interval
    with_prompt: Interval
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    acceptance_by_depth: tuple[float, ...] = ()
    draft_share: float | None = None
    verify_share: float | None = None
    other_share: float | None = None
    joules_per_token: float | None = None
    verify_by_rows: dict[int, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """One contestant: its figures over everything, and per category.

    Args:
        kind: "plain", "ours" or "peer".
        settings: what was decided for it, by name.
    """

    name: str
    kind: str
    settings: dict[str, Any]
    groups: tuple[Group, ...]
    lossless: bool | None = None
    same_text: SameText | None = None

    def group(self, category: str = ALL) -> Group | None:
        return next((group for group in self.groups if group.category == category), None)


@dataclass(frozen=True)
class Perplexity:
    """e to the mean negative log-probability per token; comparable between precisions of one model only."""

    value: float
    tokens: int


@dataclass(frozen=True)
class Run:
    """One precision of one pair."""

    pair: str
    target: str
    draft: str | None
    device: str
    dtype: str
    threads: int
    load_s: float
    weight_bytes: int
    results: tuple[Result, ...]
    memory: PeakMemory
    perplexity: Perplexity | None = None
    notes: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()

    @property
    def plain(self) -> Result | None:
        return next((result for result in self.results if result.kind == "plain"), None)


@dataclass(frozen=True)
class Report:
    """Everything that was measured, and under which circumstances. `complete` is false after an interruption."""

    circumstances: Circumstances
    workload: str
    questions: int
    settings: dict[str, Any]
    runs: tuple[Run, ...]
    complete: bool

    @property
    def ok(self) -> bool:
        """Whether every text that was promised to be plain's is."""
        return all(result.same_text.ok for run in self.runs for result in run.results if result.same_text)


def summarise(plain: Sequence[Measured], other: Sequence[Measured]) -> tuple[Group, ...]:
    """The groups of one contestant: everything first, then every category. Replies without a counterpart are left out.

    Args:
        plain: plain decoding's replies, the denominator.
        other: the contestant's; plain decoding's own give ratios of exactly 1.
    """
    by_prompt = {reply.about: reply for reply in plain}
    matched = [(by_prompt[reply.about], reply) for reply in other if reply.about in by_prompt]
    matched = [(p, o) for p, o in matched if p.written.tokens and o.written.tokens]
    categories = dict.fromkeys(reply.category for _, reply in matched)
    groups = [_group(ALL, matched)] if matched else []
    return (*groups, *(_group(c, [two for two in matched if two[1].category == c]) for c in categories))


def _group(category: str, matched: Sequence[tuple[Measured, Measured]]) -> Group:
    replies = [other for _, other in matched]
    tokens = sum(len(reply.written.tokens) for reply in replies)
    decode_s = sum(reply.written.decode_s for reply in replies)
    prefill_s = sum(reply.written.prefill_s for reply in replies)
    return Group(
        category=category,
        replies=len(replies),
        tokens=tokens,
        tokens_per_s=_per(tokens, decode_s),
        median_tokens_per_s=statistics.median(_per(len(r.written.tokens), r.written.decode_s) for r in replies),
        prompt_tokens_per_s=_per(sum(len(reply.prompt) for reply in replies), prefill_s),
        ratio=_ratio(matched, 0.0),
        with_prompt=_ratio(matched, 1.0),
        joules_per_token=_joules_per_token(replies),
        **_work_figures(replies, decode_s),
    )


def _ratio(matched: Sequence[tuple[Measured, Measured]], prompt_share: float) -> Interval:
    """Plain's time over the other's, question by question, both for as many tokens as plain wrote."""
    above: dict[str, float] = defaultdict(float)
    below: dict[str, float] = defaultdict(float)
    for plain, other in matched:
        count = len(plain.written.tokens)
        above[plain.question_id] += plain.seconds_per_token * count + prompt_share * plain.written.prefill_s
        below[plain.question_id] += other.seconds_per_token * count + prompt_share * other.written.prefill_s
    return ratio_of_totals(list(above.values()), list(below.values()))


def _work_figures(replies: Sequence[Measured], decode_s: float) -> dict[str, Any]:
    works = [reply.written.work for reply in replies if reply.written.work is not None]
    rounds = sum(work.rounds for work in works)
    if not works or not rounds:
        return {}
    drafted = sum(work.drafted for work in works)
    offered = _sum_by_depth([work.offered_by_depth for work in works])
    accepted = _sum_by_depth([work.accepted_by_depth for work in works])
    accepted += [0] * (len(offered) - len(accepted))
    passes: dict[int, int] = defaultdict(int)
    seconds: dict[int, float] = defaultdict(float)
    for work in works:
        for rows, (count, spent) in work.verify_by_rows.items():
            passes[rows] += count
            seconds[rows] += spent
    return {
        "acceptance_length": sum(len(reply.written.tokens) for reply in replies) / rounds,
        "acceptance_rate": sum(work.accepted for work in works) / drafted if drafted else None,
        "acceptance_by_depth": tuple(_per(a, o) for a, o in zip(accepted, offered, strict=False)),
        "draft_share": _per(sum(work.draft_s for work in works), decode_s),
        "verify_share": _per(sum(work.verify_s for work in works), decode_s),
        "other_share": _per(sum(work.other_s for work in works), decode_s),
        "verify_by_rows": {rows: (passes[rows], seconds[rows] / passes[rows]) for rows in sorted(passes)},
    }


def _sum_by_depth(counts: Sequence[Sequence[int]]) -> list[int]:
    deepest = max((len(one) for one in counts), default=0)
    return [sum(one[depth] for one in counts if depth < len(one)) for depth in range(deepest)]


def _joules_per_token(replies: Sequence[Measured]) -> float | None:
    known = [r for r in replies if r.written.energy_j is not None]
    if len(known) != len(replies):
        return None
    return _per(sum(r.written.energy_j or 0.0 for r in known), sum(len(r.written.tokens) for r in known))


def _per(amount: float, of: float) -> float:
    return amount / of if of else 0.0
