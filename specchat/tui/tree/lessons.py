"""Five lessons on the user's own question: every number comes from the rounds of the last reply, or from the engine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specchat.engine.protocol.events import RoundDone, WouldBe
from specchat.engine.protocol.round_nodes import drafted_of
from specchat.tui.state.what_if import length_of
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, bar, paragraph, width_of, wrapped_lines
from specchat.tui.tree.picture import Marks, label

TITLES = (
    "What a token is",
    "What a pass costs here",
    "Why checking guesses is nearly free",
    "Why guesses form a tree",
    "When it does not pay",
)
_SHOWN_TOKENS = 24
_FEW = 3
"""Rounds that a time must be the median of."""

_ROOMY = 48
"""Columns from which times are told with how many passes they are of."""

_EVEN = 0.05
"""A gain or loss that is less is none."""

Entries = list[list[ScreenLine]]


@dataclass(frozen=True)
class LessonFacts:
    """What the lessons are about.

    Args:
        rounds: of the last reply; empty where there is none.
        prompt_tokens: what was read before it; 0 where that is not known.
        plain, chain: what the reply would have been without guesses, and with guesses in a single line.
        waits: why one of these is not known yet.
        speedup: the reply's own, as the line below it says.
    """

    rounds: Sequence[RoundDone] = ()
    prompt_tokens: int = 0
    plain: WouldBe | None = None
    chain: WouldBe | None = None
    waits: str = ""
    speedup: str = ""

    @property
    def texts(self) -> list[str]:
        return [piece.text for round in self.rounds for piece in round.pieces]

    def passes(self) -> dict[int, tuple[float, int]]:
        """Tokens that a pass of the target read → its time in the median, in seconds, and of how many passes."""
        found: dict[int, list[float]] = {}
        for round in self.rounds:
            found.setdefault(len(round.tree.tokens), []).append(round.timings.verify_s)
        return {rows: (statistics.median(each), len(each)) for rows, each in sorted(found.items()) if len(each) >= _FEW}

    def guessing(self) -> tuple[float, float, int] | None:
        """Seconds and tokens of a round with guesses, and of how many rounds; None where there are too few."""
        those = [round for round in self.rounds if len(round.tree.tokens) > 1]
        if len(those) < _FEW:
            return None
        seconds = statistics.median(round.timings.total_s for round in those)
        return seconds, sum(len(round.pieces) for round in those) / len(those), len(those)

    def plain_s(self) -> tuple[float, str] | None:
        """Seconds of a round without guesses, and where that comes from; None where it is not known."""
        those = [round.timings.total_s for round in self.rounds if len(round.tree.tokens) == 1]
        if len(those) >= _FEW:
            return statistics.median(those), f"median of {len(those)} such rounds of your reply"
        if self.plain is not None and self.plain.other is not None:
            return self.plain.other.round_s, "from doing your reply once more without guesses"
        return None

    def later_choices(self) -> tuple[int, int]:
        """Kept guesses that the drafter held less likely than another at the same place, and all kept guesses."""
        kept = later = 0
        for round in self.rounds:
            said = drafted_of(round)
            for node in round.verdict.path:
                beside = [n for n, parent in enumerate(round.tree.parents) if parent == round.tree.parents[node]]
                kept += 1
                later += any(said.get(other, 0.0) > said.get(node, 0.0) for other in beside)
        return later, kept


def asks(lesson: int, facts: LessonFacts) -> tuple[str, dict[str, Any]] | None:
    """What the engine is asked for before a lesson is complete: a field of the facts, and changes of settings."""
    if not facts.rounds:
        return None
    if lesson in (1, 2, 4) and facts.plain_s() is None and facts.plain is None:
        return "plain", {"nodes": 0}
    if lesson == 3 and facts.chain is None and facts.guessing() is not None:
        return "chain", {"policy": "chain", "width": 1}
    return None


def lesson_page(lesson: int, facts: LessonFacts, width: int, marks: Marks) -> tuple[str, Entries]:
    """The title and the paragraphs of a lesson, the last of them a sentence to repeat."""
    makers: tuple[Callable[[LessonFacts, int, Marks], tuple[Entries, str]], ...] = (
        _token, _passes, _checking, _trees, _paying
    )  # fmt: skip
    title = f"{lesson + 1} · {TITLES[lesson]}"
    if not facts.rounds:
        first = "First ask anything: the lessons are about your own question and its answer, on this machine."
        return title, [paragraph(first, width, "text"), [[]], paragraph("Then /lesson again.", width, "dim")]
    entries, repeat = makers[lesson](facts, width, marks)
    last = [[(line, "accepted")] for line in wrapped_lines(f"In one sentence: {repeat}", width)]
    return title, [*entries, [[]], last]


def _said(width: int, *sentences: str) -> Entries:
    return [paragraph(sentence, width, "text") for sentence in sentences if sentence]


def _token(facts: LessonFacts, width: int, marks: Marks) -> tuple[Entries, str]:
    texts = facts.texts
    characters = sum(map(len, texts))
    before = f"Your question, and what the model is told around it, was {numbers.tokens(facts.prompt_tokens)}. "
    shown: list[ScreenLine] = [[]]
    for at, text in enumerate(texts[:_SHOWN_TOKENS]):
        part = (label(text, marks), "accepted" if at % 2 else "bonus")
        if shown[-1] and width_of([*shown[-1], (" ", ""), part]) > width:
            shown.append([])
        shown[-1] += [(" ", ""), part] if shown[-1] else [part]
    sure = next(
        ((r.verdict.bonus_text, r.verdict.bonus_logprob) for r in facts.rounds if r.verdict.bonus_logprob), None
    )
    one = "" if sure is None or sure[1] is None else (
        f"For {label(sure[0], marks)} it said {math.exp(min(0.0, sure[1])):.0%}.".replace("%", " %")
    )  # fmt: skip
    entries = [
        *_said(
            width,
            "A model reads and writes neither letters nor words, but tokens: pieces of text from a list of its own.",
            (before if facts.prompt_tokens else "")
            + f"The answer is {numbers.tokens(len(texts))}: {characters / max(1, len(texts)):.1f} characters each. "
            "It begins:",
        ),
        shown,
        *_said(width, f"Before each token it says how likely every token of its list is, and one is chosen. {one}"),
    ]
    return entries, "a token is a piece of text, and a model writes one after the other."


def _passes(facts: LessonFacts, width: int, _: Marks) -> tuple[Entries, str]:
    count = len(facts.texts)
    entries = _said(
        width,
        "To say what comes next, the model goes once through all the numbers it is made of. That is a pass.",
    )
    if (plain := facts.plain_s()) is None:
        entries += _said(width, f"What a pass takes here is not known yet: {facts.waits or 'no reply had one alone'}.")
    else:
        seconds, source = plain
        entries += _said(
            width,
            f"Here a pass for one token takes {numbers.milliseconds(seconds)} ({source}). One pass for each token "
            f"makes {numbers.rate(1 / max(1e-9, seconds))} tokens a second.",
            f"Your answer of {numbers.tokens(count)} would take {count} passes, or {seconds * count:.1f} s. "
            f"It took {len(facts.rounds)} passes.",
        )
    return entries, "a pass takes about the same time again and again, and plain writing needs one for every token."


def _checking(facts: LessonFacts, width: int, _: Marks) -> tuple[Entries, str]:
    passes = facts.passes()
    entries = _said(
        width,
        "Most of a pass is spent on fetching the model's numbers from memory. Once they are there, it can use them for "
        "several tokens at once. So a small helper guesses the next tokens, and one pass checks all guesses together.",
    )
    if len(passes) < 2:
        known = "your answer had passes of one size alone, so there is nothing to compare"
        return [*entries, *_said(width, f"On this machine: {known}.")], (
            "one pass can check many guesses, because it fetches the model's numbers once."
        )
    most = max(seconds for seconds, _ in passes.values())
    chosen = list(passes.items())
    chosen = [*chosen[:2], *chosen[-2:]] if len(chosen) > 4 else chosen
    roomy = width >= _ROOMY
    room = max(3, min(24, width - (40 if roomy else 24)))
    rows: list[ScreenLine] = [
        [(f"{numbers.tokens(rows):>10} ", "text"), (bar(seconds / most, room), "bar"),
         (f" {numbers.milliseconds(seconds)}", "text"), (f"  {times} passes" if roomy else "", "dim")]
        for rows, (seconds, times) in chosen
    ]  # fmt: skip
    fewest, widest = chosen[0], chosen[-1]
    times = widest[1][0] / max(1e-9, fewest[1][0])
    as_many = widest[0] / fewest[0]
    verdict = f"{numbers.tokens(widest[0])} took {times:.1f} × the time of {fewest[0]}, not {as_many:.0f} ×."
    entries += [*_said(width, "Passes of your answer, in the median:"), rows, *_said(width, verdict)]
    if times < as_many:
        return (
            entries,
            f"here checking {widest[0]} tokens costs {times:.1f} times a pass for {fewest[0]}, "
            "since the numbers are fetched once.",
        )
    return entries, "here checking many tokens is not cheap: this machine computes more slowly than it fetches."


def _trees(facts: LessonFacts, width: int, marks: Marks) -> tuple[Entries, str]:
    later, kept = facts.later_choices()
    entries = _said(
        width,
        "If one guess is wrong, all behind it are lost. So the helper also lays down its second and third choice, each "
        "with a continuation of its own: a tree. One pass checks every branch.",
        f"Guesses that your answer kept: {kept}. Not the helper's first choice: {later} of them.",
    )
    both = facts.chain
    if both is not None and both.own is not None and both.other is not None:
        entries += _said(
            width,
            f"Your answer once more, with guesses in a single line: {length_of(both.other):.2f} tokens a round with "
            f"{both.other.drafted} guesses. As it was: {length_of(both.own):.2f}, with {both.own.drafted}.",
        )
    else:
        entries += _said(width, f"Against a single line: {facts.waits or 'not measured yet'}.")
    return entries, "a tree bets on several continuations at once, and one pass settles all bets."


def _paying(facts: LessonFacts, width: int, _: Marks) -> tuple[Entries, str]:
    guessing, plain = facts.guessing(), facts.plain_s()
    entries: Entries = []
    if guessing is None:
        entries += _said(
            width, "Your answer was written nearly without guesses: either settings or their cost ruled them out."
        )
    elif plain is None:
        entries += _said(
            width, f"What a round without guesses takes is not known yet: {facts.waits or 'not measured'}."
        )
    else:
        seconds, tokens, count = guessing
        price = seconds / max(1e-9, plain[0])
        even = abs(tokens / price - 1) < _EVEN
        won = "That is about even." if even else "So it paid." if tokens > price else "So it did not pay."
        entries += _said(
            width,
            f"A round with guesses took {numbers.milliseconds(seconds)} (median of {count}), one without "
            f"{numbers.milliseconds(plain[0])} ({plain[1]}): {price:.2f} times as long.",
            f"It has to bring more than {price:.2f} tokens. In your answer it brought {tokens:.2f}. {won}",
        )
    entries += _said(
        width,
        f"The line below your answer says {facts.speedup}." if facts.speedup else "",
        "It loses where guesses are seldom right, as in surprising text or at a high temperature, and where a machine "
        "computes so slowly that every guess takes time of its own.",
    )
    return entries, "guessing pays while a round brings more tokens than it costs plain passes."
