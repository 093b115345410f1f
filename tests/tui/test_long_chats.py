"""Chats of any length: little of them is mounted, all of them can be reached, and what is read stays in place."""

from __future__ import annotations

import re

import pytest
from driving import Driver, driving
from fake import rounds_of, started, stats_of
from textual.widgets import Markdown

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Count, Generate
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.turn import Reply, Turn
from specchat.tui.widgets.messages import NewerView, OlderView, text_of


def turns_of(count: int) -> list[Turn]:
    """Questions and answers in turn, each saying its number."""
    turns = []
    for number in range(count):
        if number % 2:
            reply = Reply(0, Figures(), stop="end")
            reply.add(f"answer {number}\n\n- with a list\n- of two\n", "target")
            turns.append(Turn("assistant", reply=reply))
        else:
            turns.append(Turn("user", f"question {number}"))
    return turns


async def opened(d: Driver, count: int) -> None:
    for turn in turns_of(count):
        d.app.chat.branches.add(turn)
    await d.view.transcript.restore(d.app.chat.turns)
    await d.settle()
    await d.settle()


def without_scrollbar(screen: str) -> str:
    return re.sub("[▁▂▃▄▅▆▇█▔]", " ", screen)


async def still(d: Driver) -> None:
    """Wait until no more messages come or go."""
    for _ in range(50):
        before = list(d.view.transcript.views)
        await d.settle()
        if not d.view.transcript._turning.locked() and d.view.transcript.views == before:
            return


async def test_of_ten_thousand_messages_only_the_last_are_mounted():
    async with driving() as d:
        await opened(d, 10_000)
        page = d.view.transcript
        assert 10 < len(page.views) < 100
        assert text_of(page.views[-1]).startswith("answer 9999")
        assert "answer 9999" in d.screen()
        assert page.turns == d.app.chat.turns
        assert f"{10_000 - len(page.views):,} older" in page.query_one(OlderView).text


@pytest.mark.usefixtures("drawing_at_once")
@pytest.mark.parametrize("count", [4, 16, 160])
@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_a_chat_that_is_opened_is_seen_whole_and_at_its_end_from_the_first_frame(size, count):
    async with driving(size) as d:
        page, frames, display = d.view.transcript, [], d.app._display

        def shown(screen, update) -> None:
            if update is not None and page.views:
                frames.append((page.scroll_y, page.max_scroll_y))
            display(screen, update)

        d.app._display = shown
        await opened(d, count)
        assert frames
        assert set(frames) == {(page.max_scroll_y, page.max_scroll_y)}
        assert f"answer {count - 1}" in d.screen()


@pytest.mark.slow
async def test_scrolling_up_reaches_older_messages_and_lets_the_newest_go():
    async with driving() as d:
        await opened(d, 160)
        page = d.view.transcript
        mounted = len(page.views)
        for _ in range(15):
            page.scroll_page_up(animate=False)
            await d.settle()
        await still(d)
        assert len(page.views) < 2 * mounted
        assert page.turns == d.app.chat.turns
        assert page.query(NewerView)
        assert "answer 159" not in d.screen()
        for _ in range(30):
            page.scroll_page_down(animate=False)
            await d.settle()
        await still(d)
        assert "answer 159" in d.screen()
        assert not page.query(NewerView)
        assert page.turns == d.app.chat.turns


@pytest.mark.parametrize("size", [(120, 40), (60, 20)])
async def test_what_is_being_read_stays_where_it_is_while_older_messages_arrive(size):
    async with driving(size) as d:
        await opened(d, 160)
        page = d.view.transcript
        page.scroll_to(y=20, animate=False)
        await d.settle()
        before = without_scrollbar(d.screen())
        assert await page.turn_page(-1)
        await d.settle()
        await d.settle()
        assert without_scrollbar(d.screen()) == before


async def test_keys_go_to_the_very_first_message_and_back_to_the_last():
    async with driving() as d:
        await opened(d, 2_000)
        page = d.view.transcript
        page.focus()
        await d.pilot.press("g")
        await d.settle()
        assert text_of(page.views[0]) == "question 0"
        assert "question 0" in d.screen()
        assert page.turns == d.app.chat.turns
        await d.pilot.press("G")
        await d.settle()
        await d.settle()
        assert "answer 1999" in d.screen()
        assert page.is_anchored


@pytest.mark.slow
async def test_moving_up_message_by_message_passes_the_end_of_the_page():
    async with driving() as d:
        await opened(d, 120)
        page = d.view.transcript
        page.focus()
        for _ in range(70):
            await d.pilot.press("k")
        await d.settle()
        assert text_of(page.chosen_view()) == "question 50"


async def test_a_question_asked_while_reading_old_messages_is_shown_at_the_end():
    async with driving() as d:
        await opened(d, 120)
        page = d.view.transcript
        page.focus()
        await d.pilot.press("g")
        await d.settle()
        d.view.prompt.focus()
        await d.say("something new")
        await d.hear(ev.Counted(d.link.last(Count).id, 5000, 8192))  # of old replies it is not known
        await d.reply("an answer")
        await d.settle()
        assert "something new" in d.screen()
        assert "an answer" in "".join(view.source for view in d.app.query(Markdown))
        assert page.turns == d.app.chat.turns


async def test_a_message_longer_than_a_page_is_shown_whole():
    async with driving() as d:
        turns = turns_of(20)
        turns[-1].reply.add("\n\n".join(f"paragraph {n}" for n in range(200)), "drafted")
        for turn in turns:
            d.app.chat.branches.add(turn)
        await d.view.transcript.restore(turns)
        await d.settle()
        await d.settle()
        assert "paragraph 199" in d.screen()
        assert len(d.view.transcript.views) == 1


async def test_a_reply_of_twenty_thousand_tokens_is_shown_whole_and_laid_out_in_groups():
    paragraph = "This is **one** of very many paragraphs, and it is followed by others of its kind.\n\n"
    text = paragraph * 1_000
    async with driving() as d:
        await d.say("write a lot")
        generate = d.link.last(Generate)
        await d.hear(started(generate.messages, generate.id))
        rounds = rounds_of(text, id=generate.id, step_s=0.02)
        assert sum(len(round.pieces) for round in rounds) > 20_000
        for begin in range(0, len(rounds), 400):
            await d.hear(*rounds[begin : begin + 400])
        await d.hear(ev.Finished(generate.id, "end", "", stats_of(rounds), 9.0))
        view = d.view.transcript.views[-1]
        assert "".join(block.source for block in view.query(Markdown)) == text
        assert len(view.children) < 60
        assert "of its kind." in d.screen()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[bold red]no markup[/] [link=x]", "[bold red]no markup[/] [link=x]"),
        ("\x1b]0;title\x07 and \x1b[2J", "␛]0;title␇ and ␛[2J"),
        ("a\x9b31mb\x84", "a⟨9b⟩31mb⟨84⟩"),
        ("abc\u202edcba\u202c \u2067x\u2069", "abc⟨202e⟩dcba⟨202c⟩ ⟨2067⟩x⟨2069⟩"),
        ("\u200fright\u061c", "⟨200f⟩right⟨61c⟩"),
    ],
    ids=["markup", "escape sequences", "eight-bit controls", "text that turns round", "marks"],
)
@pytest.mark.parametrize("finished", [False, True])
async def test_what_a_model_writes_cannot_steer_the_terminal(text, shown, finished):
    async with driving() as d:
        await d.say("hi")
        await d.reply(f"x {text} y", finish=finished)
        screen = d.screen()
        assert shown in screen
        assert not any(character in screen for character in "\x1b\x07\x9b\x84\u202e\u202c\u2067\u2069\u200f\u061c")
