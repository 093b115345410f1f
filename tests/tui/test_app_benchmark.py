"""A short benchmark in the app: races on shipped questions, their figures, and a chat that is left as it was."""

from __future__ import annotations

import pytest
from driving import Driver, driving, in_one_app
from fake import LOSS, SETTINGS
from races import Clock, answer, warm_up

from specchat.bench.workloads import own_workload
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Compare, Generate
from specchat.tui.screens.bench import BenchScreen
from specchat.tui.state.races import BenchQuestion

QUESTIONS = [
    BenchQuestion("chat", "Why?"),
    BenchQuestion("code", "How?"),
    BenchQuestion("chat", "When?"),
    BenchQuestion("code", "[red]Where?[/red]"),
]


CLOCK = Clock()
"""The benchmark's clock, which stands still."""


async def bench(d: Driver, amount: str = "") -> None:
    """Begin a benchmark."""
    d.link.sent.clear()
    await d.say(f"/bench {amount}".strip())
    await d.settle()


def shown(d: Driver, part: str) -> str:
    assert isinstance(d.app.screen, BenchScreen)
    return d.drawn(d.app.screen.query_one(f"#{part}"))  # type: ignore[arg-type]


async def whole(d: Driver, races: int) -> None:
    await warm_up(d)
    for _ in range(races):
        await answer(d)


async def every_question_is_raced_on_and_they_take_turns_in_beginning(d: Driver) -> None:
    await bench(d)
    await whole(d, 4)
    asked = [c for c in d.link.sent if isinstance(c, Generate)][1:]
    assert [c.messages[0].content for c in asked] == [question.prompt for question in QUESTIONS]
    assert [c.apart.get("controller") for c in asked] == ["off", None, "off", None]
    assert [c.beside.apart.get("controller") for c in asked] == [None, "off", None, "off"]
    assert len({c.seed for c in asked}) == 4
    assert {apart["max_tokens"] for c in asked for apart in (c.apart, c.beside.apart)} == {96}


async def the_table_has_a_line_for_every_category_and_one_for_all(d: Driver) -> None:
    await bench(d)
    await whole(d, 4)
    table = shown(d, "table").splitlines()
    assert table[0].split() == ["plain", "tok/s", "tok/s", "×", "plain", "τ", "same", "text"]
    assert [line.split()[0] for line in table[1:4]] == ["chat", "code", "all"]
    assert table[3].split()[-3:] == ["4", "of", "4"]
    assert "4 of 4 replies are plain decoding's, token by token" in shown(d, "outcome")


async def the_settings_that_are_named_are_those_of_the_benchmark_not_of_the_chat(d: Driver) -> None:
    await d.hear(ev.Changed({**SETTINGS, "temperature": 0.5}, LOSS))
    await bench(d)
    assert d.link.last(Generate).apart["temperature"] == 0.0
    assert " · greedy · seed" in shown(d, "progress")
    await d.hear(ev.Changed(SETTINGS, LOSS))


async def progress_names_what_runs_and_never_reads_a_question_as_markup(d: Driver) -> None:
    await bench(d)
    assert "warming up" in shown(d, "progress")
    await warm_up(d)
    assert "plain decoding writes · Why?" in shown(d, "progress")
    for _ in range(3):
        await answer(d)
    assert "speculation writes · [red]Where?[/red]" in shown(d, "progress")
    assert "3 of 4 questions" in shown(d, "progress")


async def a_number_says_how_many_questions(d: Driver) -> None:
    await bench(d, "1")
    await whole(d, 1)
    assert "1 of 1 questions" in shown(d, "progress")
    assert "1 of 1 replies" in shown(d, "outcome")


async def a_time_ends_it_after_the_race_that_runs(d: Driver) -> None:
    await bench(d, "5s")
    await warm_up(d)
    CLOCK.now += 6
    await answer(d)
    assert "1 of 1 replies" in shown(d, "outcome")
    assert "1 questions, for 5 s" in shown(d, "progress")


async def escape_stops_and_keeps_the_table_and_a_second_one_leaves(d: Driver) -> None:
    await bench(d)
    await whole(d, 1)
    running = d.link.last(Generate)
    await d.pilot.press("escape")
    assert d.link.sent[-1] == Cancel(running.id)
    assert "stopped; this is what was measured" in shown(d, "progress")
    assert "1 of 1" in shown(d, "table")
    await d.pilot.press("escape")
    await d.pilot.pause()
    assert not isinstance(d.app.screen, BenchScreen)
    assert d.app.chat.turns == []
    assert d.view.prompt.has_focus


async def a_near_tie_is_counted_as_one(d: Driver) -> None:
    await bench(d, "2")
    await warm_up(d)
    await answer(d, last=9999)
    compare = d.link.last(Compare)
    await d.hear(ev.Compared(compare.id, 5, "a", "b", 0.01, 0.3, True))
    await answer(d)
    assert "1 of 2 replies are plain decoding's" in shown(d, "outcome")
    assert "1 left at a near-tie" in shown(d, "outcome")


async def the_table_can_be_copied_and_run_again(d: Driver) -> None:
    await bench(d, "1")
    await whole(d, 1)
    await d.pilot.press("c")
    assert d.app.clipboard.splitlines()[0].startswith("smol · prompt_lookup · expansion · 18 nodes")
    assert "same text" in d.app.clipboard
    first = d.link.last(Generate).seed
    await d.pilot.press("r")
    assert d.link.last(Generate).seed == first
    assert "being written" in shown(d, "table")


async def test_a_failure_is_said():
    async with driving(questions=lambda: QUESTIONS, clock=CLOCK) as d:
        await bench(d)
        await d.hear(ev.Died(1, ""))
        assert "the engine stopped" in shown(d, "outcome")


async def an_amount_that_is_none_is_refused_in_one_line(d: Driver) -> None:
    for amount in ("0", "ten", "-3", "5m", "s"):
        await bench(d, amount)
        assert "neither a number of questions" in d.drawn(d.view.notice), amount
        assert not any(isinstance(c, Generate) for c in d.link.sent), amount
        d.view.prompt.clear()


async def test_without_questions_nothing_begins():
    async with driving() as d:
        await d.say("/bench")
        assert "no questions come with this installation" in d.drawn(d.view.notice)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)])
async def test_the_line_that_sums_up_and_the_proof_fit_on_every_screen(size):
    async with driving(size=size, questions=lambda: QUESTIONS, clock=CLOCK) as d:
        await bench(d)
        await whole(d, 4)
        assert "all" in shown(d, "table")
        assert "4 of 4 replies" in shown(d, "outcome")
        assert d.app.screen.query_one("#outcome").region.bottom <= size[1]


def test_the_shipped_questions_come_one_of_each_category_in_turn():
    questions = own_workload().in_turn()
    count = len(own_workload().categories)
    assert len({question.category for question in questions[:count]}) == count
    assert sorted(q.question_id for q in questions) == sorted(q.question_id for q in own_workload().questions)


async def test_a_benchmark_is_run_stopped_copied_and_run_again():
    await in_one_app(
        every_question_is_raced_on_and_they_take_turns_in_beginning,
        the_table_has_a_line_for_every_category_and_one_for_all,
        progress_names_what_runs_and_never_reads_a_question_as_markup,
        a_number_says_how_many_questions,
        a_time_ends_it_after_the_race_that_runs,
        escape_stops_and_keeps_the_table_and_a_second_one_leaves,
        a_near_tie_is_counted_as_one,
        the_table_can_be_copied_and_run_again,
        the_settings_that_are_named_are_those_of_the_benchmark_not_of_the_chat,
        an_amount_that_is_none_is_refused_in_one_line,
        questions=lambda: QUESTIONS,
        clock=CLOCK,
    )
