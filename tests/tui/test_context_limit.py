"""A full context: the oldest turns are left out if the user says so, and it is never the end of a chat."""

from __future__ import annotations

from driving import driving
from full_context import MORE, counted, full, generates, left_out_and_answered, over_by_one_turn, press, small_context

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Count
from specchat.tui.screens.context_limit import turns_to_leave_out
from specchat.tui.state.turn import Turn
from specchat.tui.widgets.messages import UserView


async def test_a_full_context_offers_what_can_be_done_and_going_back_changes_nothing():
    async with driving(loaded=False) as d:
        await full(d)
        screen = d.screen()
        assert "the chat would take 260 tokens, its context holds 200" in screen
        assert "Drop oldest" in screen
        assert "Summarise" in screen
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.view.prompt.text == MORE
        assert not d.view.alert.display
        assert len(generates(d)) == 3


async def test_what_is_typed_while_a_choice_is_offered_goes_into_the_prompt_and_enter_chooses_nothing():
    async with driving(loaded=False) as d:
        await full(d)
        await d.pilot.press("enter", *"next", "enter")
        await d.settle()
        assert d.view.prompt.text == "next"
        assert d.view.alert.display
        assert d.app.chat.left_out == 0
        assert "waits for room" in d.drawn(d.view.notice)


async def test_tab_goes_to_the_choices_and_letters_go_on_into_the_prompt():
    async with driving(loaded=False) as d:
        await full(d)
        screen = " ".join(d.screen().replace("▌", "").split())
        assert "Tab chooses · Esc goes back" in screen
        await d.pilot.press("tab", "tab")
        assert d.app.focused.id == "summary"
        await d.pilot.press(*"ne", "tab", "space", *"xt")
        assert d.view.prompt.text == "ne xt"
        await d.pilot.press("tab")
        assert d.app.focused.id == "leave_out"
        await d.pilot.press("enter")
        await d.pilot.pause()
        assert d.app.chat.left_out == 4
        assert d.view.prompt.text == "ne xt"


async def test_a_second_message_waits_until_the_first_has_room():
    async with driving(loaded=False) as d:
        await full(d)
        d.view.prompt.focus()
        await d.say("and another")
        assert "waits for room" in d.drawn(d.view.notice)
        assert d.view.prompt.text == "and another"
        await press(d, "leave_out")
        await counted(d, 120)
        assert generates(d)[-1].messages[-1] == ev.Message("user", MORE)


async def test_the_oldest_turns_are_left_out_and_stay_on_the_page():
    async with driving(loaded=False) as d:
        await full(d)
        await press(d, "leave_out")
        await counted(d, 120)
        assert [m.content[:10] for m in generates(d)[-1].messages] == ["question 2", "answer 2 w", "one more x"]
        assert "from here on the 4 oldest messages are not sent any more" in d.screen()
        assert len(d.app.chat.turns) == 8
        assert len(d.app.query(UserView)) == 4


async def test_a_message_that_fits_alone_is_sent_without_the_only_turn_before_it():
    async with driving(loaded=False) as d:
        await over_by_one_turn(d)
        assert "Drop oldest" in d.screen()
        await press(d, "leave_out")
        await counted(d, 150)
        assert generates(d)[-1].messages == [ev.Message("user", "two " + "x" * 200)]
        assert "from here on the 2 oldest messages are not sent any more" in d.screen()
        await d.reply("second answer")
        await d.say("three")
        said = [message.content[:6] for message in generates(d)[-1].messages]
        assert said == ["two xx", "second", "three"]


async def test_the_only_turn_stays_left_out_when_the_chat_is_opened_again(tmp_path):
    store = tmp_path / "chats.db"
    async with driving(loaded=False, store=store) as d:
        await over_by_one_turn(d)
        id = await left_out_and_answered(d, "second answer")
    async with small_context(store=store, chat=id) as d:
        assert [turn.message().content[:6] for turn in d.app.chat.turns] == ["one xx", "first ", "two xx", "second"]
        await d.say("three")
        assert [message.content[:6] for message in generates(d)[-1].messages] == ["two xx", "second", "three"]


async def test_where_every_turn_was_left_out_an_answer_can_still_be_asked_for_again():
    async with small_context() as d:
        await d.say("one")
        await d.reply("first answer")
        d.app.chat.sent.leave_out(d.app.chat.turns, 2)
        await d.say("/retry")
        assert generates(d)[-1].messages == [ev.Message("user", "one")]


async def test_what_was_left_out_stays_left_out_when_the_chat_is_opened_again(tmp_path):
    store = tmp_path / "chats.db"
    async with driving(loaded=False, store=store) as d:
        await full(d)
        id = await left_out_and_answered(d, "fine")
    async with small_context(store=store, chat=id) as d:
        assert "the 4 oldest messages are not sent on" in d.screen()
        assert len(d.app.query(UserView)) == 4
        await d.say("and now?")
        said = [message.content[:10] for message in generates(d)[-1].messages]
        assert said == ["question 2", "answer 2 w", "one more x", "fine", "and now?"]


async def test_the_message_that_waits_for_a_choice_is_not_lost_where_another_chat_begins():
    async with driving(loaded=False) as d:
        await full(d)
        await d.pilot.press("ctrl+n")
        await d.settle()
        assert not d.app.chat.turns
        assert not d.view.alert.display
        assert d.view.prompt.text == MORE
        told = d.drawn(d.view.notice)
        assert "the message that waited was not sent: it is in the prompt again" in told


async def test_a_message_that_begins_with_a_slash_is_taken_back_as_it_is_typed():
    async with small_context() as d:
        await d.say("//help " + "x" * 200)
        await counted(d, 150)
        await d.reply("ok")
        await d.say("//stop " + "x" * 200)
        await counted(d, 260, 4)
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.view.prompt.text == "//stop " + "x" * 200


async def test_an_engine_that_refuses_a_prompt_leads_to_the_same_offer():
    async with small_context() as d:
        await d.say("first")
        await d.reply("answer " + "word " * 10)
        await d.say("漢字")
        if isinstance(d.link.sent[-1], Count):
            await counted(d, 100)
        words = "the prompt takes 300 tokens and the context of this model holds 200"
        await d.hear(ev.Failed("PromptTooLong", words, 2, generates(d)[-1].id, "generate"))
        await counted(d, 300, 20)
        assert "Drop oldest" in d.screen()
        await press(d, "leave_out")
        assert generates(d)[-1].messages == [ev.Message("user", "漢字")]


async def test_a_message_behind_a_prompt_that_is_too_long_goes_back_into_the_prompt():
    async with small_context() as d:
        await d.say("a question")
        await d.reply("an answer")
        await d.say("another")
        await d.say("and one more")
        assert d.app.chat.queued == "and one more"
        asked = generates(d)
        await d.hear(ev.Failed("PromptTooLong", "this prompt is too long", 2, asked[-1].id, "generate"))
        assert generates(d) == asked
        assert d.app.chat.queued is None
        assert d.view.prompt.text == "and one more"
        assert "the message that waited was not sent: it is in the prompt again" in d.drawn(d.view.notice)
        await counted(d, 260, 4)
        assert "the chat would take 260 tokens" in d.screen()
        assert d.view.prompt.text == "and one more"


def test_turns_leave_in_pairs_and_the_last_question_stays():
    turns = [Turn("user" if n % 2 == 0 else "assistant", "x" * 99) for n in range(7)]
    assert turns_to_leave_out(turns, 700, 400) == 4
    assert turns_to_leave_out(turns, 700, 10_000) == 2
    assert turns_to_leave_out(turns, 700, 1) == 6
    assert turns_to_leave_out(turns[:1], 700, 1) == 0


def test_all_turns_may_leave_for_a_message_that_is_none_of_them():
    turns = [Turn("user" if n % 2 == 0 else "assistant", "x" * 99) for n in range(4)]
    assert turns_to_leave_out(turns, 400, 250, all_may_go=True) == 2
    assert turns_to_leave_out(turns, 400, 100, all_may_go=True) == 4
    assert turns_to_leave_out(turns[:2], 200, 100, all_may_go=True) == 2
