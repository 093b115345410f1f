"""`/lesson`: every number is one of the reply's events or of the engine's answer, at every size."""

from __future__ import annotations

import statistics

import msgspec
import pytest
from driving import Driver, driving, wait_for
from fake import ready, rounds_of, started, stats_of

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import check
from specchat.engine.protocol.commands import Generate, WhatIf
from specchat.engine.protocol.round_parts import Piece, Timings, Tree, Verdict
from specchat.tui.screens.lessons import LessonView
from specchat.tui.text.cells import width_of
from specchat.tui.tree import ASCII, UNICODE
from specchat.tui.tree.lessons import TITLES, LessonFacts, lesson_page

WORDS = "In the beginning there was a word and the word was short "


ANSWERED = {1: ("12.5 ms", "from doing your reply once more"), 3: ("1.32 tokens a round with 48", "2.20, with 99")}
"""What the engine's answer in the test is on the screen."""


def timed(plain: int) -> list[ev.RoundDone]:
    """A reply whose rounds took times of their own, so many of them without guesses."""
    rounds = [
        msgspec.structs.replace(round, timings=Timings(0.002, 0.010 + 0.001 * len(round.tree.tokens), 0.001))
        for round in rounds_of(WORDS * 6)
    ]
    for index in range(len(rounds), len(rounds) + plain):
        alone, verdict = Tree([7], [-1], ["x"], [], [None]), Verdict([], 2, " y", -0.5, ["accepted"])
        timings = Timings(0.0, 0.0085 + 0.0001 * index, 0.0)
        rounds.append(
            ev.RoundDone(1, index, 9.0 + index, 99, {"nodes": 0}, alone, verdict, [Piece(2, " y", "target")], timings)
        )
    return rounds


def words_of(lines: list) -> str:
    return " ".join("".join(text for text, _ in line) for line in lines)


def page(lesson: int, facts: LessonFacts, width: int = 62) -> str:
    title, entries = lesson_page(lesson, facts, width, UNICODE)
    return " ".join((title + " " + words_of([line for entry in entries for line in entry])).split())


def test_the_numbers_are_those_of_the_rounds():
    rounds = timed(plain=5)
    facts = LessonFacts(rounds, 31, speedup="1.2× ± 0.1")
    pieces = [piece.text for round in rounds for piece in round.pieces]
    assert f"was 31 tokens. The answer is {len(pieces)} tokens: {len(''.join(pieces)) / len(pieces):.1f}" in page(
        0, facts
    )
    alone_s = statistics.median(r.timings.verify_s for r in rounds if len(r.tree.tokens) == 1)
    said = page(1, facts)
    assert f"takes {alone_s * 1000:.1f} ms (the median of 5 in your answer)" in said
    assert f"{len(pieces)} passes, or {alone_s * len(pieces):.1f} s" in said
    assert f"It took {len(rounds)} passes, since some" in said
    sizes = [len(r.tree.tokens) for r in rounds]
    widest = max(size for size in sizes if sizes.count(size) >= 3)
    assert f"{alone_s * 1000:.1f} ms" in page(2, facts), "both lessons name the same time"
    assert f"{widest} tokens took {(10 + widest) / (alone_s * 1000):.1f} × the time of 1, not {widest} ×" in page(
        2, facts
    )
    guessing = [r for r in rounds if len(r.tree.tokens) > 1]
    brought = sum(len(r.pieces) for r in guessing) / len(guessing)
    said = page(4, facts)
    assert f"It wrote {brought:.2f} on average." in said
    assert "compares all of it with writing plainly: 1.2× ± 0.1" in said


def retimed(round: ev.RoundDone, total_s: float) -> ev.RoundDone:
    return msgspec.structs.replace(round, timings=Timings(0.0, total_s, 0.0))


@pytest.mark.parametrize(("price", "verdict"), [(1.25, "So it paid."), (30.0, "So it did not pay.")])
def test_a_slower_part_of_the_reply_does_not_change_what_guesses_cost(price, verdict):
    """Rounds without guesses stand mostly where the machine was five times as slow."""
    guess, alone = timed(plain=1)[0], timed(plain=1)[-1]
    quick = [*[retimed(guess, price * 0.01)] * 24, retimed(alone, 0.01)]
    slow = [*[retimed(alone, 0.05)] * 3, retimed(guess, price * 0.05)] * 4
    said = page(4, LessonFacts([*quick, *slow]))
    assert f"took {price:.2f} times as long as one without" in said
    assert verdict in said


def test_rounds_done_once_more_that_guessed_more_are_not_those_of_the_answer():
    guess = timed(plain=1)[0]
    own, other = ev.RedoneRounds(8, 10, 99, 0.030), ev.RedoneRounds(10, 10, 0, 0.010)
    for full, price in ((False, 3.0), (True, 1.2)):
        redone = ev.WouldBe(1, own, other, decided=True, full=full)
        said = page(4, LessonFacts([retimed(guess, 0.012)] * 8, plain=redone))
        assert f"took {price:.2f} times as long as one without" in said


def test_what_was_not_measured_is_not_said():
    facts = LessonFacts(timed(plain=0)[:2], waits="the engine is asked")
    assert "not known yet: the engine is asked" in page(1, facts)
    assert "nothing to compare" in page(2, facts)
    assert "Against a single line: the engine is asked" in page(3, facts)
    assert "nearly without guesses" in page(4, facts)
    for lesson in range(len(TITLES)):
        assert "First ask anything" in page(lesson, LessonFacts())
        assert "First ask anything" not in page(lesson, facts)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 20)])
async def test_every_lesson_can_be_read_at_every_size(size):
    async with driving(size=size) as d:
        await d.say("/lesson 9")
        await d.until("/lesson takes a number")
        d.view.prompt.clear()
        await answered(d)
        await d.say("/lesson")
        for lesson, title in enumerate(TITLES):
            view = d.view.transcript.query_one(LessonView)
            await wait_for(d.pilot, lambda view=view, lesson=lesson: view.page == lesson)
            if lesson in (1, 3):
                await wait_for(d.pilot, lambda: isinstance(d.link.sent[-1], WhatIf) and d.view.lessons._asked)
                question = d.link.sent[-1]
                check(question)
                assert question.changes == ({"nodes": 0} if lesson == 1 else {"policy": "chain", "width": 1})
                own, other = ev.RedoneRounds(30, 66, 99, 0.02), ev.RedoneRounds(50, 66, 48, 0.0125)
                await d.hear(ev.WouldBe(question.id, own, other, True, True))
            parts = ""
            while view.is_attached and view.page == lesson:
                await d.settle()
                shown = d.drawn(view)
                assert view.size.height <= d.view.transcript.size.height, "nothing is above or below the window"
                parts += " " + shown
                await d.pilot.press("enter")
                await d.pilot.pause()
            told = " ".join(parts.split())
            for number in ANSWERED.get(lesson, ()):
                assert number in told, told
            assert "In one sentence:" in told
            assert title in told or size != (120, 40)
        assert not d.view.transcript.query(LessonView)


async def test_a_lesson_asks_once_its_pair_is_loaded():
    async with driving() as d:
        await answered(d)
        chat = d.app.chat
        chat.engine.load({})
        chat.engine.ready = None
        await d.say("/lesson 2")
        await d.until("smol is still being")
        assert not [command for command in d.link.sent if isinstance(command, WhatIf)]
        await d.hear(ready())
        question = d.link.last(WhatIf)
        own, other = ev.RedoneRounds(30, 66, 99, 0.02), ev.RedoneRounds(50, 66, 48, 0.0125)
        await d.hear(ev.WouldBe(question.id, own, other, True, True))
        await d.until("takes 12.5 ms")


async def test_a_lesson_asks_again_after_the_engine_stopped():
    async with driving() as d:
        await answered(d)
        await d.say("/lesson 2")
        first = d.link.last(WhatIf)
        await d.hear(ev.Died(1, "out of luck"))
        await d.hear(ready())
        again = d.link.last(WhatIf)
        assert again.id != first.id
        own, other = ev.RedoneRounds(30, 66, 99, 0.02), ev.RedoneRounds(50, 66, 48, 0.0125)
        await d.hear(ev.WouldBe(again.id, own, other, True, True))
        await d.until("takes 12.5 ms")


async def answered(d: Driver) -> None:
    await d.say("How?")
    generate = d.link.last(Generate)
    rounds = [msgspec.structs.replace(round, id=generate.id) for round in timed(plain=0)]
    await d.hear(started(generate.messages, generate.id), *rounds)
    await d.hear(ev.Finished(generate.id, "end", "", stats_of(rounds), 9.0))


def test_lines_are_within_the_width():
    facts = LessonFacts(timed(plain=5), 31)
    for width in (62, 48, 28):
        for lesson in range(len(TITLES)):
            for marks in (UNICODE, ASCII):
                _, entries = lesson_page(lesson, facts, width, marks)
                assert max(width_of(line) for entry in entries for line in entry) <= width
