"""A message that may not fit into the context is counted before it is sent."""

from __future__ import annotations

from driving import driving, wait_for
from fake import hello, ready
from full_context import LIMIT, LONG, MORE, counted, counting, generates, over_by_one_turn, small, small_context

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Count, Generate


async def test_what_surely_fits_is_not_counted_first():
    async with driving() as d:
        await d.say("short")
        assert len(generates(d)) == 1
        assert not any(isinstance(command, Count) for command in d.link.sent)


async def test_what_may_not_fit_is_counted_and_sent_if_it_does():
    async with counting() as d:
        assert generates(d) == []
        assert "counting" in d.drawn(d.view.notice)
        await counted(d, LIMIT - 1)
        assert generates(d)[0].messages == [ev.Message("user", LONG)]


async def test_a_message_in_a_script_of_many_tokens_is_counted_before_it_is_sent():
    async with counting("好" * 60) as d:  # may take 180 tokens, and the chat's format some more
        assert isinstance(d.link.sent[-1], Count)
        assert generates(d) == []


async def test_a_paste_far_longer_than_the_context_is_refused_at_once_and_stays_in_the_prompt():
    async with small_context() as d:
        text = "word " * 10_000
        await d.say(text)
        said = "50,000 bytes do not fit into the context, which holds 200 tokens"
        await wait_for(d.pilot, lambda: said in d.drawn(d.view.notice))
        assert d.view.prompt.full_text == text
        assert not any(isinstance(command, Count | Generate) for command in d.link.sent)
        assert not d.app.chat.turns


async def test_a_message_that_never_fits_stays_in_the_prompt_while_it_is_counted_and_after():
    async with counting("word " * 1000) as d:
        assert d.view.prompt.full_text == "word " * 1000
        assert d.view.prompt.sent.texts == []
        await counted(d, 1441417)
        told = d.drawn(d.view.notice)
        assert "this message alone takes 1,441,417 tokens, the context holds 200" in told
        assert d.view.prompt.full_text == "word " * 1000
        assert generates(d) == []
        assert d.app.chat.turns == []


async def test_a_message_leaves_the_prompt_once_it_is_counted_and_fits():
    async with counting() as d:
        assert d.view.prompt.full_text == LONG
        await counted(d, 150)
        assert d.view.prompt.full_text == ""
        assert d.view.prompt.sent.texts == [LONG]
        assert len(generates(d)) == 1


async def test_what_is_typed_while_a_message_is_counted_stays():
    async with counting() as d:
        d.view.prompt.write("the next thought")
        await counted(d, 150)
        assert d.view.prompt.text == "the next thought"
        assert generates(d)[0].messages == [ev.Message("user", LONG)]


async def test_a_paste_that_was_refused_is_not_cleared_by_a_later_message():
    async with counting("word " * 1000) as d:
        await counted(d, 5000)
        await d.view.context_limit.apply(ev.Failed("PromptTooLong", "too long", during="generate"))
        await counted(d, 260, 4)
        assert d.view.prompt.full_text == "word " * 1000


async def test_a_message_that_was_being_counted_survives_its_engine():
    async with counting() as d:
        await d.hear(ev.Died(-9, "killed"))
        assert "⧗ waits: xxx" in d.drawn(d.view.queued_message)
        await d.pilot.press("f5")
        await d.pilot.pause()
        await small(d)
        await counted(d, 150)
        assert generates(d)[-1].messages == [ev.Message("user", LONG)]


async def test_a_message_whose_second_count_fails_stays_in_the_prompt_and_the_next_is_taken():
    async with driving(loaded=False) as d:
        await over_by_one_turn(d, 310)
        second = d.link.last(Count)
        await d.hear(ev.Failed("EngineError", "out of memory", 1, second.id, "count"))
        assert d.view.prompt.text.startswith("two xxx")
        told = d.drawn(d.view.notice)
        assert "the chat has no room for this message, and it was not counted: out of memory" in told
        d.view.prompt.clear()
        await d.say("ok")
        assert "waits for room" not in d.drawn(d.view.notice)
        assert generates(d)[-1].messages[-1] == ev.Message("user", "ok")


async def test_escape_takes_back_what_is_being_counted():
    async with counting() as d:
        asked = d.link.last(Count)
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.view.prompt.text == LONG
        await d.hear(ev.Counted(asked.id, 300, LIMIT))
        assert not d.view.alert.display
        assert generates(d) == []


async def test_another_chat_is_not_bothered_by_the_full_one():
    async with counting() as d:
        asked = d.link.last(Count)
        await d.pilot.press("ctrl+n")
        await d.hear(ev.Counted(asked.id, 300, LIMIT))
        assert not d.view.alert.display
        await d.say("short")
        assert generates(d)[-1].messages == [ev.Message("user", "short")]


async def test_a_message_too_long_beside_the_system_message_is_refused_once_and_stays_in_the_prompt():
    async with small_context() as d:
        await d.say("one")
        await d.reply("first answer")
        d.app.chat.system = "Be brief."
        await d.say(MORE)
        await counted(d, 260)
        assert d.link.last(Count).messages == [ev.Message("system", "Be brief."), ev.Message("user", MORE)]
        await counted(d, 201)
        told = d.drawn(d.view.notice)
        assert "this message and the system message take 201 tokens, the context holds 200" in told
        assert d.view.prompt.text == MORE
        assert not d.view.alert.display
        assert len(generates(d)) == 1


async def test_the_status_line_warns_when_the_context_is_nearly_full():
    async with driving(loaded=False) as d:
        await d.hear(hello(), ready(context_tokens=1000))
        await d.say("hi")
        generate = generates(d)[-1]
        await d.hear(ev.Started(generate.id, generate.messages, 799, 0, 7, {}, ev.Losslessness(True, ""), "smol"))
        assert "▲" not in d.drawn(d.view.status)
        await d.hear(ev.Started(generate.id, generate.messages, 860, 0, 7, {}, ev.Losslessness(True, ""), "smol"))
        assert "▲ 860 / 1,000 · 86 %" in d.drawn(d.view.status)
