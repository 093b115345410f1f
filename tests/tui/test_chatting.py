"""Saying something and reading the answer."""

from __future__ import annotations

import pytest
from driving import driving
from fake import FakeLink, hello, ready, rounds_of, started, stats_of
from textual.widgets import Markdown

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Count, Generate, Message
from specchat.tui.widgets.messages import NewerView, OlderView, UserView, text_of
from specchat.tui.widgets.reply_view import ReplyView


def markdown_of(driver) -> str:
    return "".join(view.source for view in driver.app.query(Markdown))


async def test_a_reply_streams_into_markdown_and_ends_with_its_figures():
    async with driving() as d:
        await d.say("How does it work?")
        assert d.link.last(Generate).messages == [Message("user", "How does it work?")]
        rounds = await d.reply()
        told = "".join(piece.text for round in rounds for piece in round.pieces)
        assert d.app.chat.turns[-1].reply.text == told
        assert markdown_of(d) == told
        assert "200\u00a0tok ·" in d.app.query_one(ReplyView)._figures.text
        assert (
            "2.7×\u00a0±\u00a00.1\u00a0(12\u00a0plain\u00a0rounds\u00a0here)"
            in d.app.query_one(ReplyView)._figures.text
        )
        assert "lossless" in d.drawn(d.view.stats)
        assert "2.7× ± 0.1  12 plain rounds here" in d.drawn(d.view.stats)


async def test_the_open_block_is_tinted_by_who_wrote_it():
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=4, finish=False)
        tail = d.app.query_one(ReplyView)._tail
        assert {role for line in tail._lines for _, role in line} == {"drafted", "target"}
        assert tail.text in d.app.chat.running.text


async def test_the_tree_shows_the_last_verified_round_and_the_title_says_how_many_guesses_were_kept():
    async with driving() as d:
        await d.say("hi")
        rounds = await d.reply(upto=5, finish=False)
        drawn = d.drawn(d.view.tree_panel)
        assert "★" in drawn
        assert "●" in drawn
        assert "earlier rounds" in drawn
        guesses, kept = len(rounds[4].tree.tokens) - 1, len(rounds[4].verdict.path)
        assert str(d.view.tree_panel.border_title) == f"kept {kept} of {guesses} guesses"


async def test_escape_stops_at_the_next_round_and_keeps_the_text():
    async with driving() as d:
        await d.say("hi")
        rounds = await d.reply(upto=9, finish=False)
        await d.pilot.press("escape")
        generate = d.link.last(Generate)
        assert d.link.last(Cancel) == Cancel(generate.id)
        await d.hear(ev.Finished(generate.id, "cancelled", "", stats_of(rounds[:9]), 1.0))
        assert d.app.chat.turns[-1].reply.text == "".join(p.text for r in rounds[:9] for p in r.pieces)
        assert d.app.query_one(ReplyView)._figures.text.startswith("stopped")
        await d.say("go on")
        assert [m.role for m in d.link.last(Generate).messages] == ["user", "assistant", "user"]


async def test_a_message_sent_before_the_model_is_ready_waits_and_is_sent():
    async with driving(loaded=False) as d:
        await d.say("too early")
        assert not any(isinstance(c, Generate) for c in d.link.sent)
        assert "too early" in d.drawn(d.view.queued_message)
        await d.hear(hello(), ready())
        assert d.link.last(Generate).messages == [Message("user", "too early")]


async def test_one_message_waits_while_a_reply_is_written_and_a_second_stays_in_the_prompt():
    async with driving() as d:
        await d.say("first")
        await d.reply(upto=3, finish=False)
        await d.say("second")
        await d.say("third")
        assert d.app.chat.queued == "second"
        assert d.view.prompt.text == "third"
        await d.hear(ev.Finished(1, "end", "", stats_of(rounds_of()), 1.0))
        assert d.link.last(Generate).messages[-1] == Message("user", "second")


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
async def test_a_new_line_never_sends(key):
    async with driving() as d:
        await d.pilot.press("a", key, "b")
        assert d.view.prompt.text == "a\nb"
        assert not any(isinstance(c, Generate) for c in d.link.sent)


async def test_up_brings_back_what_was_sent():
    async with driving() as d:
        await d.say("one")
        await d.reply("fine", finish=True)
        await d.say("two")
        await d.pilot.press("up", "up")
        assert d.view.prompt.text == "one"
        await d.pilot.press("down", "down")
        assert d.view.prompt.text == ""


async def test_model_text_is_never_markup_and_never_steers_the_terminal():
    async with driving() as d:
        await d.say("say [bold]x[/] \x1b[31mred")
        await d.reply("a [red]x[/] b \x1b[31m red \x07 end [/nope]\n\nnew block [/] <b>html</b>\n")
        screen = d.screen()
        assert "[red]x[/] b ␛[31m" in screen
        assert "[/nope]" in screen
        assert "<b>html</b>" in screen
        assert "say [bold]x[/] ␛[31mred" in screen
        assert "\x1b" not in screen
        assert "\x07" not in screen
        assert "\x1b[31m" in d.app.chat.turns[-1].reply.text  # the engine gets its own text back


async def test_wide_characters_keep_every_column_in_place():
    async with driving((70, 24)) as d:
        await d.say("你好 👩‍👩‍👧")
        await d.reply("你好世界，這是一個很長的段落沒有空格" * 6 + " 🎉🎉 end", finish=False)
        size = d.app.size
        assert all(strip.cell_length == size.width for strip in d.app.screen._compositor.render_strips())


async def test_five_thousand_pasted_lines_are_sent_whole_and_shown_folded():
    async with driving() as d:
        text = "\n".join(f"line {n}" for n in range(5000))
        d.view.prompt.insert(text)
        await d.pilot.pause()
        await d.pilot.press("enter")
        await d.pilot.pause()
        await d.hear(ev.Counted(d.link.last(Count).id, 8000, 8192))
        assert d.link.last(Generate).messages[0].content == text
        assert d.app.query_one(UserView).size.height < 40
        assert "4,976 more lines" in d.screen()


async def test_a_transcript_that_is_scrolled_up_stays_where_it_is():
    async with driving((80, 24)) as d:
        await d.say("hi")
        await d.reply()
        await d.say("more")
        await d.reply(upto=20, finish=False)
        view = d.view.transcript
        assert view.max_scroll_y > 0
        assert view.scroll_y == view.max_scroll_y
        view.scroll_to(y=2, animate=False)
        await d.pilot.pause()
        await d.hear(*rounds_of(id=2)[20:40])
        assert view.scroll_y == 2


async def test_regenerating_replaces_the_last_reply():
    async with driving() as d:
        await d.say("hi")
        await d.reply("first answer")
        d.view.transcript.focus()
        await d.pilot.press("r")
        await d.pilot.pause()
        assert d.link.last(Generate).messages == [Message("user", "hi")]
        assert len(d.app.query(ReplyView)) == 1
        await d.reply("second answer")
        assert "second answer" in d.screen()
        assert "first answer" not in d.screen()


async def test_keys_move_between_messages_and_copy_one():
    async with driving() as d:
        await d.say("the question")
        await d.reply("the answer")
        d.view.transcript.focus()
        await d.pilot.press("k", "k", "c")
        await d.pilot.pause()
        assert d.app.clipboard == "the question"
        await d.pilot.press("g", "j", "c")
        await d.pilot.pause()
        assert d.app.clipboard == "the answer"
        await d.pilot.press("G")
        assert d.view.transcript.chosen is None


async def test_a_new_chat_forgets_the_old_one_and_what_still_arrives_from_it():
    async with driving() as d:
        await d.say("hi")
        rounds = await d.reply(upto=4, finish=False)
        await d.pilot.press("ctrl+n")
        assert isinstance(d.link.sent[-1], Cancel)
        await d.hear(rounds[4])
        assert d.app.chat.turns == []
        assert not d.app.query(ReplyView)
        await d.say("fresh")
        assert d.link.last(Generate).messages == [Message("user", "fresh")]


async def test_token_view_shows_every_token_and_flips_back():
    async with driving() as d:
        await d.say("hi")
        await d.reply()
        view = d.app.query_one(ReplyView)
        await d.pilot.press("f8")
        await d.pilot.pause()
        assert view._tokens.display
        assert view._tokens.text == d.app.chat.turns[-1].reply.text.replace("\t", "    ")
        await d.pilot.press("f8")
        assert not view.token_view


async def test_no_speed_up_is_claimed_without_plain_rounds():
    async with driving() as d:
        await d.say("hi")
        rounds = await d.reply(upto=6, finish=False)
        assert "too few rounds to say (0 of 8)" in d.drawn(d.view.stats)
        await d.hear(ev.Finished(1, "end", "", stats_of(rounds, speedup=None, plain_rounds=0), 1.0))
        assert "too\u00a0few\u00a0rounds\u00a0to\u00a0say" in d.app.query_one(ReplyView)._figures.text


async def test_ctrl_c_stops_first_and_quits_only_when_pressed_twice():
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=3, finish=False)
        await d.pilot.press("ctrl+c")
        assert isinstance(d.link.sent[-1], Cancel)
        await d.hear(ev.Finished(1, "cancelled", "", stats_of(rounds_of()), 1.0))
        await d.pilot.press("ctrl+c")
        assert d.app.is_running
        assert "again" in d.drawn(d.view.notice)
        await d.pilot.press("ctrl+c")
        assert d.app.return_code == 0


async def test_an_engine_that_does_not_stop_cannot_keep_the_user():
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=3, finish=False)
        await d.pilot.press("ctrl+c", "ctrl+c", "ctrl+c")
        assert sum(isinstance(c, Cancel) for c in d.link.sent) == 1
        assert d.app.return_code == 0


async def test_ctrl_c_copies_what_is_selected_in_the_prompt():
    async with driving() as d:
        d.view.prompt.write("copy me")
        d.view.prompt.select_all()
        await d.pilot.press("ctrl+c")
        assert d.app.clipboard == "copy me"
        assert d.app.return_code is None


async def test_a_long_chat_keeps_a_short_page_and_gives_the_rest_back_on_request(monkeypatch):
    monkeypatch.setattr("specchat.tui.widgets.mounted_page.KEPT_LINES", 30)
    monkeypatch.setattr("specchat.tui.widgets.mounted_page.SLACK_LINES", 10)
    async with driving((120, 24)) as d:
        for number in range(12):
            await d.say(f"question {number}")
            await d.reply(f"answer {number}\n\nand more\n\nand more still")
        page = d.view.transcript
        assert len(page.views) < 14
        assert len(d.link.last(Generate).messages) == 23
        page.focus()
        await d.pilot.press("g")
        await d.settle()
        assert text_of(page.views[0]) == "question 0"
        assert text_of(page.views[1]).startswith("answer 0")
        assert not page.query(OlderView) or page.query_one(NewerView)


async def test_events_of_another_reply_are_not_shown():
    async with driving() as d:
        await d.say("hi")
        await d.hear(started([], 99), *rounds_of(id=99)[:3])
        assert d.app.chat.running.text == ""


def test_the_fake_engine_is_deterministic():
    assert rounds_of() == rounds_of()
    link = FakeLink()
    link.put(hello())
    assert len(link.drain()) == 1
    assert link.drain() == []
