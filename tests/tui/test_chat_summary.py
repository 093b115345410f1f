"""A full context: a new chat begins from a summary of the old one."""

from __future__ import annotations

import msgspec
import pytest
from driving import Driver, driving
from fake import started, stats_of
from full_context import MORE, counted, full, generates, press, small

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Count
from specchat.tui.screens.context_limit import SUMMARY_HEAD, SUMMARY_REQUEST, SUMMARY_TOKENS


async def summarising(d: Driver) -> list[ev.RoundDone]:
    """A summary is being written, and the fourth question waits for it."""
    await full(d)
    await press(d, "summary")
    return await d.reply("We counted", upto=1, finish=False)


async def test_a_new_chat_begins_from_a_summary_that_the_model_wrote():
    async with driving(loaded=False) as d:
        await full(d)
        await press(d, "summary")
        assert generates(d)[-1].messages[-1] == ev.Message("user", SUMMARY_REQUEST)
        await d.reply("We counted questions.")
        await counted(d, 150)
        asked = generates(d)[-1].messages
        assert asked == [
            ev.Message("system", f"{SUMMARY_HEAD}\nWe counted questions."),
            ev.Message("user", MORE),
        ]
        assert "goes on from a summary of “question 0”" in " ".join(d.screen().split())


async def test_a_summary_that_is_stopped_leaves_everything_as_it_was():
    async with driving(loaded=False) as d:
        await full(d)
        await press(d, "summary")
        rounds = await d.reply("We counted", upto=1, finish=False)
        await d.hear(ev.Finished(generates(d)[-1].id, "cancelled", "", stats_of(rounds), 1.0))
        assert "the chat stays as it is" in d.drawn(d.view.notice)
        assert d.view.prompt.text == MORE
        assert d.app.chat.turns[0].content == "question 0"
        assert d.app.chat.turns_before_next() == d.app.chat.turns, "all is sent again"
        assert SUMMARY_REQUEST not in [turn.content for turn in d.app.chat.turns]
        assert SUMMARY_REQUEST[:20] not in d.screen()


async def test_the_message_behind_a_summary_is_shown_as_waiting_and_can_be_taken_back():
    async with driving(loaded=False) as d:
        await summarising(d)
        assert "⧗ waits: one more xxx" in d.drawn(d.view.queued_message)
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.view.prompt.text == MORE
        await d.hear(ev.Finished(generates(d)[-1].id, "end", " questions.", stats_of([]), 1.0))
        assert d.app.chat.system == f"{SUMMARY_HEAD}\nWe counted questions."
        assert d.app.chat.turns == []
        assert d.view.prompt.text == MORE


async def test_the_message_behind_a_summary_survives_the_engine():
    async with driving(loaded=False) as d:
        await summarising(d)
        await d.hear(ev.Died(-9, "killed"))
        assert "⧗ waits: one more xxx" in d.drawn(d.view.queued_message)
        await d.pilot.press("f5")
        await d.pilot.pause()
        await small(d)
        await counted(d, 150)
        assert generates(d)[-1].messages[-1] == ev.Message("user", MORE)


@pytest.mark.parametrize(("typed", "left"), [("", MORE), ("other", "other")])
async def test_the_message_behind_a_summary_is_not_lost_where_another_chat_begins(typed, left):
    async with driving(loaded=False) as d:
        rounds = await summarising(d)
        await d.pilot.press(*typed, "ctrl+n")
        await d.hear(ev.Finished(generates(d)[-1].id, "cancelled", "", stats_of(rounds), 1.0))
        assert not d.app.chat.turns
        assert d.view.prompt.text == left
        assert "the message that waited was not sent" in d.drawn(d.view.notice)
        assert d.view.prompt.sent.found("one more") == [MORE]


async def test_a_summary_that_does_not_fit_itself_leaves_the_chat_as_it_was():
    async with driving(loaded=False) as d:
        await full(d)
        await press(d, "summary")
        words = "the prompt takes 300 tokens and the context of this model holds 200"
        counts = sum(isinstance(command, Count) for command in d.link.sent)
        await d.hear(ev.Failed("PromptTooLong", words, 2, generates(d)[-1].id, "generate"))
        assert "the chat stays as it is" in d.drawn(d.view.notice)
        assert d.view.prompt.text == MORE
        assert sum(isinstance(command, Count) for command in d.link.sent) == counts


async def test_a_message_that_still_does_not_fit_behind_its_summary_is_refused_and_stays():
    async with driving(loaded=False) as d:
        await full(d)
        await press(d, "summary")
        await d.reply("We counted questions.")
        await counted(d, 230)
        await counted(d, 230)
        assert "this message and the system message take 230 tokens" in d.drawn(d.view.notice)
        assert d.view.prompt.text == MORE


async def test_no_summary_begins_while_a_pair_is_loaded():
    async with driving(loaded=False) as d:
        await full(d)
        d.app.chat.engine.phase = "loading"
        await press(d, "summary")
        assert len(generates(d)) == 3
        d.app.chat.engine.phase = "ready"
        await press(d, "summary")
        assert generates(d)[-1].messages[-1] == ev.Message("user", SUMMARY_REQUEST)


@pytest.mark.parametrize(("set", "longest"), [(15, SUMMARY_TOKENS), (SUMMARY_TOKENS + 5, SUMMARY_TOKENS + 5)])
async def test_a_summary_has_a_length_of_its_own_and_the_settings_stay(set, longest):
    async with driving(loaded=False) as d:
        await full(d)
        engine = d.app.chat.engine
        engine.settings["max_tokens"] = set
        await press(d, "summary")
        asked = generates(d)[-1]
        assert asked.apart == {"max_tokens": longest}
        begun = started(asked.messages, asked.id)
        await d.hear(msgspec.structs.replace(begun, settings={**begun.settings, "max_tokens": longest}))
        assert d.app.chat.last_reply().facts.settings["max_tokens"] == longest
        assert engine.settings["max_tokens"] == set
        await d.hear(ev.Finished(asked.id, "end", "We counted questions.", stats_of([]), 1.0))
        await counted(d, 150)
        assert generates(d)[-1].apart is None


async def test_a_summary_that_was_cut_says_so():
    async with driving(loaded=False) as d:
        rounds = await summarising(d)
        await d.hear(ev.Finished(generates(d)[-1].id, "length", "", stats_of(rounds), 1.0))
        await counted(d, 150)
        assert "the summary is not complete" in d.screen()
        assert generates(d)[-1].messages[-1] == ev.Message("user", MORE)


async def test_a_summary_for_which_there_was_no_room_leaves_the_chat_as_it_was():
    async with driving(loaded=False) as d:
        rounds = await summarising(d)
        await d.hear(ev.Finished(generates(d)[-1].id, "context", "", stats_of(rounds), 1.0))
        assert "there is no room for a summary, so the chat stays as it is" in d.drawn(d.view.notice)
        assert d.view.prompt.text == MORE
        assert d.app.chat.turns[0].content == "question 0"
