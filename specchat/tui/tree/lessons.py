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

_NEAR = 4
"""Rounds before and after one without guesses that it is compared with."""

_ONCE_MORE = "from doing your reply once more without guesses"

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

    def guessing(self) -> tuple[float, int]:
        """Tokens that a round with guesses wrote on average, and of how many rounds."""
        those = [round for round in self.rounds if len(round.tree.tokens) > 1]
        return sum(len(round.pieces) for round in those) / max(1, len(those)), len(those)

    def pass_s(self) -> tuple[float, str] | None:
        """Seconds of a pass for one token, and where that comes from; None where it is not known."""
        if (alone := self.passes().get(1)) is not None:
            return alone[0], f"the median of {alone[1]} in your answer"
        if self.plain is not None and self.plain.other is not None:
            return self.plain.other.round_s, _ONCE_MORE
        return None

    def price(self) -> tuple[float, str] | None:
        """How many times as long as a round without guesses one with guesses took, and where that comes from.

        Neighbours are compared, since other programs may slow a part of the reply. None where it is not known.
        """
        ratios = []
        for at, round in enumerate(self.rounds):
            near = self.rounds[max(0, at - _NEAR) : at + _NEAR + 1]
            beside = [other.timings.total_s for other in near if len(other.tree.tokens) > 1]
            if len(round.tree.tokens) == 1 and beside:
                ratios.append(statistics.mean(beside) / max(1e-9, round.timings.total_s))
        if len(ratios) >= _FEW:
            source = f"median of {len(ratios)} rounds without guesses, each compared with those around it"
            return statistics.median(ratios), source
        both = self.plain
        if both is not None and both.own is not None and both.other is not None:
            guessing = [round.timings.total_s for round in self.rounds if len(round.tree.tokens) > 1]
            if not both.full:
                return both.own.round_s / max(1e-9, both.other.round_s), _ONCE_MORE
            if guessing:  # those done once more guessed all they may, more than the answer's did
                return statistics.median(guessing) / max(1e-9, both.other.round_s), _ONCE_MORE
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
    lacks = {1: facts.pass_s, 4: facts.price}.get(lesson)
    if lacks is not None and lacks() is None and facts.plain is None:
        return "plain", {"nodes": 0}
    if lesson == 3 and facts.chain is None and facts.guessing()[1] >= _FEW:
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
    before = f"Your question, with the words that mark it as one, was {numbers.tokens(facts.prompt_tokens)}. "
    space = label(" ", marks)
    shown: list[ScreenLine] = [[]]
    for text in texts[:_SHOWN_TOKENS]:
        part = (label(text, marks), "strong")
        if shown[-1] and width_of([*shown[-1], (" ", ""), part]) > width:
            shown.append([])
        shown[-1] += [(" ", ""), part] if shown[-1] else [part]
    one = ""
    if sure := next((round.verdict for round in facts.rounds if round.verdict.bonus_logprob), None):
        share = numbers.percent(math.exp(min(0.0, sure.bonus_logprob or 0.0)))
        one = f"{label(sure.bonus_text, marks)} had {share} and was chosen."
    entries = [
        *_said(
            width,
            "A model reads and writes neither letters nor words, but tokens: pieces of text from a fixed list. A token "
            "can be a word, a part of one, or a comma.",
            (before if facts.prompt_tokens else "")
            + f"The answer is {numbers.tokens(len(texts))}: {characters / max(1, len(texts)):.1f} characters each, on "
            f"average. It begins so, with {space} for a space:",
        ),
        shown,
        *_said(
            width,
            "The model writes one token after the other. For each it gives every token of its list a probability, and "
            f"one of them is chosen. {one}",
        ),
    ]
    return entries, "a token is a piece of text, and a model writes one token after the other."


def _passes(facts: LessonFacts, width: int, _: Marks) -> tuple[Entries, str]:
    count, rounds = len(facts.texts), len(facts.rounds)
    entries = _said(
        width,
        "A model is a long list of numbers. To find the next token, it computes once with all of them. That is a pass.",
    )
    if (alone := facts.pass_s()) is None:
        entries += _said(width, f"What a pass takes here is not known yet: {facts.waits or 'no reply had one alone'}.")
    else:
        seconds, source = alone
        fewer = " since some passes wrote several tokens. The next lesson says how" if rounds < count else ""
        entries += _said(
            width,
            f"Here a pass for one token takes {numbers.milliseconds(seconds)} ({source}).",
            f"With a pass for each token, your answer of {numbers.tokens(count)} would take {count} passes, or "
            f"{seconds * count:.1f} s: {numbers.rate(1 / max(1e-9, seconds))} tokens a second. "
            f"It took {rounds} passes{',' * bool(fewer)}{fewer}.",
        )
    return entries, "without guesses, every token costs a pass through the whole model."


def _checking(facts: LessonFacts, width: int, _: Marks) -> tuple[Entries, str]:
    passes = facts.passes()
    entries = _said(
        width,
        "Most of a pass is spent on fetching the model's numbers from memory. Once they are there, they serve for "
        "several tokens at little extra cost.",
        "So a quick helper, the drafter, guesses the next tokens. Then your model, the target, checks all guesses in "
        "one pass and keeps those that it would have written itself. Guessing and checking once is a round.",
    )
    if len(passes) < 2:
        known = "On this machine: your answer had passes of one size alone, so there is nothing to compare."
        repeat = "one pass can check many guesses, because it fetches the model's numbers once."
        return entries + _said(width, known), repeat
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
    if times < 1 - _EVEN:
        verdict += " Less than 1 × means that other programs slowed this machine during some of the passes."
    entries += [
        *_said(width, "Passes of your answer, by the tokens they read (medians):"),
        rows,
        *_said(width, verdict),
    ]
    if times < as_many:
        took = f"{times:.1f} times as long as" if times > 1 + _EVEN else "no longer than"
        return entries, (
            "a pass fetches the model's numbers once for all its tokens: here one for "
            f"{numbers.tokens(widest[0])} takes {took} one for {fewest[0]}."
        )
    return entries, "here checking many tokens is not cheap: this machine computes more slowly than it fetches."


def _trees(facts: LessonFacts, width: int, marks: Marks) -> tuple[Entries, str]:
    later, kept = facts.later_choices()
    missed = f"For {later} of them the drafter held another token more likely: a single line of guesses would not have "
    entries = _said(
        width,
        "Where a guess is wrong, all guesses after it are lost. So the drafter also guesses other tokens for the same "
        "place, each with a continuation of its own. Together they form a tree, and one pass checks every branch.",
        f"Your answer kept {kept} guess{'es' * (kept != 1)}. "
        + (f"{missed}had them." if later else "Each was the drafter's first choice.") * bool(kept),
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
    return entries, "a tree tries several continuations at once, so a wrong first choice need not end the round."


def _paying(facts: LessonFacts, width: int, _: Marks) -> tuple[Entries, str]:
    (tokens, count), paid = facts.guessing(), facts.price()
    entries = _said(width, "Making guesses and checking them takes time of its own.")
    if count < _FEW:
        entries += _said(
            width, "Your answer was written nearly without guesses: the settings allow none, or they would have cost "
            "more than they bring."
        )  # fmt: skip
    elif paid is None:
        why = facts.waits or "not measured"
        entries += _said(width, f"What a round without guesses takes is not known yet: {why}.")
    else:
        price, source = paid
        even = abs(tokens / price - 1) < _EVEN
        won = "That is about even." if even else "So it paid." if tokens > price else "So it did not pay."
        entries += _said(
            width,
            f"In your answer a round with guesses took {price:.2f} times as long as one without ({source}).",
            f"A round without guesses writes 1 token, so one with guesses has to write more than {price:.2f}. "
            f"It wrote {tokens:.2f} on average. {won}",
        )
    line = f"The line below your answer compares all of it with writing plainly: {facts.speedup}."
    entries += _said(
        width,
        line if facts.speedup else "",
        "Guessing loses where guesses are seldom right, as in surprising text or at a high temperature, and on a "
        "machine that computes so slowly that checking more tokens takes much longer.",
    )
    return entries, "guessing pays if a round writes more tokens than plain passes would in the same time."
