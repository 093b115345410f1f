"""A full context: counted before it is asked, and never the end of a chat."""

from __future__ import annotations

import msgspec
import pytest
from driving import Driver, driving
from fake import hello, ready, started, stats_of

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Count, Generate
from specchat.tui.control.context_limit import SUMMARY_HEAD, SUMMARY_REQUEST, SUMMARY_TOKENS, turns_to_leave_out
from specchat.tui.state.turn import Turn
from specchat.tui.widgets.messages import UserView

LIMIT = 200
MORE = "one more " + "x" * 240


def generates(d: Driver) -> list[Generate]:
    return [command for command in d.link.sent if isinstance(command, Generate)]


async def small(d: Driver) -> None:
    await d.hear(hello(), ready(context_tokens=LIMIT))


async def counted(d: Driver, *tokens: int) -> None:
    """The engine answers so many counts."""
    for number in tokens:
        await d.hear(ev.Counted(d.link.last(Count).id, number, LIMIT))


async def full(d: Driver) -> None:
    """A chat of three answered questions, and a fourth that does not fit."""
    await small(d)
    for number in range(3):
        await d.say(f"question {number}")
        if d.link.sent and isinstance(d.link.sent[-1], Count):
            await counted(d, 50)
        await d.reply(f"answer {number} " + "word " * 20)
    await d.say(MORE)
    await counted(d, 260, 4)


async def press(d: Driver, button: str) -> None:
    d.app.views.alert.query_one(f"#{button}").press()
    await d.pilot.pause()
    await d.settle()


async def test_what_surely_fits_is_not_counted_first():
    async with driving() as d:
        await d.say("short")
        assert len(generates(d)) == 1
        assert not any(isinstance(command, Count) for command in d.link.sent)


async def test_what_may_not_fit_is_counted_and_sent_if_it_does():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("x" * 500)
        assert generates(d) == []
        assert "counting" in d.drawn(d.app.views.notice)
        await counted(d, LIMIT - 1)
        assert generates(d)[0].messages == [ev.Message("user", "x" * 500)]


async def test_a_message_in_a_script_of_many_tokens_is_counted_before_it_is_sent():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("好" * 60)  # may take 180 tokens, and the chat's format some more
        assert isinstance(d.link.sent[-1], Count)
        assert generates(d) == []


async def test_a_paste_far_longer_than_the_context_is_refused_at_once_and_stays_in_the_prompt():
    async with driving(loaded=False) as d:
        await small(d)
        text = "word " * 10_000
        await d.say(text)
        assert "50,000 bytes do not fit into the context, which holds 200 tokens" in d.drawn(d.app.views.notice)
        assert d.app.views.prompt.full_text == text
        assert not any(isinstance(command, Count | Generate) for command in d.link.sent)
        assert not d.app.chat.turns


async def test_a_message_that_never_fits_stays_in_the_prompt_while_it_is_counted_and_after():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("word " * 1000)
        assert d.app.views.prompt.full_text == "word " * 1000
        assert d.app.views.prompt.sent.texts == []
        await counted(d, 1441417)
        told = d.drawn(d.app.views.notice)
        assert "this message alone takes 1,441,417 tokens, the context holds 200" in told
        assert d.app.views.prompt.full_text == "word " * 1000
        assert generates(d) == []
        assert d.app.chat.turns == []


async def test_a_message_leaves_the_prompt_once_it_is_counted_and_fits():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("x" * 500)
        assert d.app.views.prompt.full_text == "x" * 500
        await counted(d, 150)
        assert d.app.views.prompt.full_text == ""
        assert d.app.views.prompt.sent.texts == ["x" * 500]
        assert len(generates(d)) == 1


async def test_what_is_typed_while_a_message_is_counted_stays():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("x" * 500)
        d.app.views.prompt.write("the next thought")
        await counted(d, 150)
        assert d.app.views.prompt.text == "the next thought"
        assert generates(d)[0].messages == [ev.Message("user", "x" * 500)]


async def test_a_paste_that_was_refused_is_not_cleared_by_a_later_message():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("word " * 1000)
        await counted(d, 5000)
        await d.app.control.context_limit.apply(ev.Failed("PromptTooLong", "too long", during="generate"))
        await counted(d, 260, 4)
        assert d.app.views.prompt.full_text == "word " * 1000


async def test_a_full_context_offers_what_can_be_done_and_going_back_changes_nothing():
    async with driving(loaded=False) as d:
        await full(d)
        screen = d.screen()
        assert "the chat would take 260 tokens, its context holds 200" in screen
        assert "Drop oldest" in screen
        assert "Summarise" in screen
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.app.views.prompt.text == MORE
        assert not d.app.views.alert.display
        assert len(generates(d)) == 3


async def test_what_is_typed_while_a_choice_is_offered_goes_into_the_prompt_and_enter_chooses_nothing():
    async with driving(loaded=False) as d:
        await full(d)
        await d.pilot.press("enter", *"next", "enter")
        await d.settle()
        assert d.app.views.prompt.text == "next"
        assert d.app.views.alert.display
        assert d.app.chat.left_out == 0
        assert "waits for room" in d.drawn(d.app.views.notice)


async def test_tab_goes_to_the_choices_and_letters_go_on_into_the_prompt():
    async with driving(loaded=False) as d:
        await full(d)
        screen = " ".join(d.screen().replace("▌", "").split())
        assert "Tab chooses · Esc goes back" in screen
        await d.pilot.press("tab", "tab")
        assert d.app.focused.id == "summary"
        await d.pilot.press(*"ne", "tab", "space", *"xt")
        assert d.app.views.prompt.text == "ne xt"
        await d.pilot.press("tab")
        assert d.app.focused.id == "leave_out"
        await d.pilot.press("enter")
        await d.pilot.pause()
        assert d.app.chat.left_out == 4
        assert d.app.views.prompt.text == "ne xt"


async def test_a_second_message_waits_until_the_first_has_room():
    async with driving(loaded=False) as d:
        await full(d)
        d.app.views.prompt.focus()
        await d.say("and another")
        assert "waits for room" in d.drawn(d.app.views.notice)
        assert d.app.views.prompt.text == "and another"
        await press(d, "leave_out")
        await counted(d, 120)
        assert generates(d)[-1].messages[-1] == ev.Message("user", MORE)


async def test_a_message_that_was_being_counted_survives_its_engine():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("x" * 500)
        await d.hear(ev.Died(-9, "killed"))
        assert "⧗ waits: xxx" in d.drawn(d.app.views.queued_message)
        await d.pilot.press("f5")
        await d.pilot.pause()
        await small(d)
        await counted(d, 150)
        assert generates(d)[-1].messages == [ev.Message("user", "x" * 500)]


async def test_escape_takes_back_what_is_being_counted():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("x" * 500)
        asked = d.link.last(Count)
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.app.views.prompt.text == "x" * 500
        await d.hear(ev.Counted(asked.id, 300, LIMIT))
        assert not d.app.views.alert.display
        assert generates(d) == []


async def test_another_chat_is_not_bothered_by_the_full_one():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("x" * 500)
        asked = d.link.last(Count)
        await d.pilot.press("ctrl+n")
        await d.hear(ev.Counted(asked.id, 300, LIMIT))
        assert not d.app.views.alert.display
        await d.say("short")
        assert generates(d)[-1].messages == [ev.Message("user", "short")]


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
        await small(d)
        await d.say("one " + "x" * 200)
        await counted(d, 150)
        await d.reply("first answer")
        await d.say("two " + "x" * 200)
        await counted(d, 310, 150)
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
        await small(d)
        await d.say("one " + "x" * 200)
        await counted(d, 150)
        await d.reply("first answer")
        await d.say("two " + "x" * 200)
        await counted(d, 310, 150)
        await press(d, "leave_out")
        await counted(d, 150)
        await d.reply("second answer")
        d.app.control.archive.close()
        id = d.app.chat.id
    async with driving(loaded=False, store=store, chat=id) as d:
        await small(d)
        assert [turn.message().content[:6] for turn in d.app.chat.turns] == ["one xx", "first ", "two xx", "second"]
        await d.say("three")
        assert [message.content[:6] for message in generates(d)[-1].messages] == ["two xx", "second", "three"]


async def test_where_every_turn_was_left_out_an_answer_can_still_be_asked_for_again():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("one")
        await d.reply("first answer")
        d.app.chat.sent.leave_out(d.app.chat.turns, 2)
        await d.say("/retry")
        assert generates(d)[-1].messages == [ev.Message("user", "one")]


async def test_a_message_too_long_beside_the_system_message_is_refused_once_and_stays_in_the_prompt():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("one")
        await d.reply("first answer")
        d.app.chat.system = "Be brief."
        await d.say(MORE)
        await counted(d, 260)
        assert d.link.last(Count).messages == [ev.Message("system", "Be brief."), ev.Message("user", MORE)]
        await counted(d, 201)
        told = d.drawn(d.app.views.notice)
        assert "this message and the system message take 201 tokens, the context holds 200" in told
        assert d.app.views.prompt.text == MORE
        assert not d.app.views.alert.display
        assert len(generates(d)) == 1


async def test_what_was_left_out_stays_left_out_when_the_chat_is_opened_again(tmp_path):
    store = tmp_path / "chats.db"
    async with driving(loaded=False, store=store) as d:
        await full(d)
        await press(d, "leave_out")
        await counted(d, 120)
        await d.reply("fine")
        d.app.control.archive.close()
        id = d.app.chat.id
    async with driving(loaded=False, store=store, chat=id) as d:
        await small(d)
        assert "the 4 oldest messages are not sent on" in d.screen()
        assert len(d.app.query(UserView)) == 4
        await d.say("and now?")
        said = [message.content[:10] for message in generates(d)[-1].messages]
        assert said == ["question 2", "answer 2 w", "one more x", "fine", "and now?"]


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
        assert "the chat stays as it is" in d.drawn(d.app.views.notice)
        assert d.app.views.prompt.text == MORE
        assert d.app.chat.turns[0].content == "question 0"
        assert d.app.chat.turns_before_next() == d.app.chat.turns, "all is sent again"
        assert SUMMARY_REQUEST not in [turn.content for turn in d.app.chat.turns]
        assert SUMMARY_REQUEST[:20] not in d.screen()


async def summarising(d: Driver) -> list[ev.RoundDone]:
    """A summary is being written, and the fourth question waits for it."""
    await full(d)
    await press(d, "summary")
    return await d.reply("We counted", upto=1, finish=False)


async def test_the_message_behind_a_summary_is_shown_as_waiting_and_can_be_taken_back():
    async with driving(loaded=False) as d:
        await summarising(d)
        assert "⧗ waits: one more xxx" in d.drawn(d.app.views.queued_message)
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.app.views.prompt.text == MORE
        await d.hear(ev.Finished(generates(d)[-1].id, "end", " questions.", stats_of([]), 1.0))
        assert d.app.chat.system == f"{SUMMARY_HEAD}\nWe counted questions."
        assert d.app.chat.turns == []
        assert d.app.views.prompt.text == MORE


async def test_the_message_behind_a_summary_survives_the_engine():
    async with driving(loaded=False) as d:
        await summarising(d)
        await d.hear(ev.Died(-9, "killed"))
        assert "⧗ waits: one more xxx" in d.drawn(d.app.views.queued_message)
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
        assert d.app.views.prompt.text == left
        assert "the message that waited was not sent" in d.drawn(d.app.views.notice)
        assert d.app.views.prompt.sent.found("one more") == [MORE]


async def test_the_message_that_waits_for_a_choice_is_not_lost_where_another_chat_begins():
    async with driving(loaded=False) as d:
        await full(d)
        await d.pilot.press("ctrl+n")
        await d.settle()
        assert not d.app.chat.turns
        assert not d.app.views.alert.display
        assert d.app.views.prompt.text == MORE
        told = d.drawn(d.app.views.notice)
        assert "the message that waited was not sent: it is in the prompt again" in told


async def test_a_summary_that_does_not_fit_itself_leaves_the_chat_as_it_was():
    async with driving(loaded=False) as d:
        await full(d)
        await press(d, "summary")
        words = "the prompt takes 300 tokens and the context of this model holds 200"
        counts = sum(isinstance(command, Count) for command in d.link.sent)
        await d.hear(ev.Failed("PromptTooLong", words, 2, generates(d)[-1].id, "generate"))
        assert "the chat stays as it is" in d.drawn(d.app.views.notice)
        assert d.app.views.prompt.text == MORE
        assert sum(isinstance(command, Count) for command in d.link.sent) == counts


async def test_a_message_that_still_does_not_fit_behind_its_summary_is_refused_and_stays():
    async with driving(loaded=False) as d:
        await full(d)
        await press(d, "summary")
        await d.reply("We counted questions.")
        await counted(d, 230)
        await counted(d, 230)
        assert "this message and the system message take 230 tokens" in d.drawn(d.app.views.notice)
        assert d.app.views.prompt.text == MORE


async def test_no_summary_begins_while_a_pair_is_loaded():
    async with driving(loaded=False) as d:
        await full(d)
        d.app.chat.engine.phase = "loading"
        await press(d, "summary")
        assert len(generates(d)) == 3
        d.app.chat.engine.phase = "ready"
        await press(d, "summary")
        assert generates(d)[-1].messages[-1] == ev.Message("user", SUMMARY_REQUEST)


async def test_a_message_that_begins_with_a_slash_is_taken_back_as_it_is_typed():
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("//help " + "x" * 200)
        await counted(d, 150)
        await d.reply("ok")
        await d.say("//stop " + "x" * 200)
        await counted(d, 260, 4)
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.app.views.prompt.text == "//stop " + "x" * 200


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
        assert "there is no room for a summary, so the chat stays as it is" in d.drawn(d.app.views.notice)
        assert d.app.views.prompt.text == MORE
        assert d.app.chat.turns[0].content == "question 0"


async def test_an_engine_that_refuses_a_prompt_leads_to_the_same_offer():
    async with driving(loaded=False) as d:
        await small(d)
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
    async with driving(loaded=False) as d:
        await small(d)
        await d.say("a question")
        await d.reply("an answer")
        await d.say("another")
        await d.say("and one more")
        assert d.app.chat.queued == "and one more"
        asked = generates(d)
        await d.hear(ev.Failed("PromptTooLong", "this prompt is too long", 2, asked[-1].id, "generate"))
        assert generates(d) == asked
        assert d.app.chat.queued is None
        assert d.app.views.prompt.text == "and one more"
        assert "the message that waited was not sent: it is in the prompt again" in d.drawn(d.app.views.notice)
        await counted(d, 260, 4)
        assert "the chat would take 260 tokens" in d.screen()
        assert d.app.views.prompt.text == "and one more"


async def test_the_status_line_warns_when_the_context_is_nearly_full():
    async with driving(loaded=False) as d:
        await d.hear(hello(), ready(context_tokens=1000))
        await d.say("hi")
        generate = generates(d)[-1]
        await d.hear(ev.Started(generate.id, generate.messages, 799, 0, 7, {}, ev.Losslessness(True, ""), "smol"))
        assert "▲" not in d.drawn(d.app.views.status)
        await d.hear(ev.Started(generate.id, generate.messages, 860, 0, 7, {}, ev.Losslessness(True, ""), "smol"))
        assert "▲ 860 / 1,000 · 86 %" in d.drawn(d.app.views.status)


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
