"""Thoughts before an answer: told apart in any pieces, folded on the page, kept out of what is sent on."""

from __future__ import annotations

from itertools import pairwise

from driving import Driver, driving, in_one_app
from fake import rounds_of, started, stats_of
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate
from specchat.tui.state.thoughts import Thoughts, closes, without_thoughts
from specchat.tui.widgets.reply_view import ReplyView, ThoughtView

THOUGHT = "<think>\nFirst I count.\nThen I add <b>.\n</think>\n\nThe answer is **four**.\n"


def in_pieces(text: str, cuts: list[int]) -> list[tuple[str, str]]:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [(text[a:b], "target") for a, b in pairwise(edges)]


def told_apart(text: str, cuts: list[int]) -> tuple[str, str]:
    thoughts, thought, speech = Thoughts(), "", ""
    for piece in in_pieces(text, cuts):
        more, said = thoughts.feed([piece])
        thought, speech = thought + "".join(t for t, _ in more), speech + "".join(t for t, _ in said)
    more, said = thoughts.finish()
    return thought + "".join(t for t, _ in more), speech + "".join(t for t, _ in said)


texts = st.one_of(
    st.just(THOUGHT),
    st.text("<think>/ \na", max_size=40),
    st.builds(
        lambda a, b: f"<think>{a}</think>\n{b}", st.text("<th>/\nx", max_size=20), st.text("<th>\nx", max_size=20)
    ),
)


@given(texts, st.lists(st.integers(0, 100), max_size=12))
def test_thoughts_are_told_apart_however_the_text_is_cut(text, cuts):
    assert told_apart(text, cuts) == told_apart(text, [])


@given(texts, st.lists(st.integers(0, 100), max_size=12))
def test_what_is_shown_as_speech_is_what_is_sent_on(text, cuts):
    if text.lstrip().startswith("<think>") or "</think>" not in text:
        assert told_apart(text, cuts)[1] == without_thoughts(text)


def test_only_the_beginning_can_be_a_thought():
    assert without_thoughts("write <think>x</think> in XML") == "write <think>x</think> in XML"
    assert without_thoughts("  <think>x</think>\n\nfour") == "four"
    assert without_thoughts("begun by the template</think>\nfour") == "four"
    assert without_thoughts("<think>never finished") == ""
    assert without_thoughts("four") == "four"


def test_the_end_of_a_thought_is_noticed_once():
    assert closes("<think>x</think>\n", 3)
    assert not closes("<think>x</think>\nand much more text", 5)
    assert closes("begun by the template</think>", 5)
    assert not closes("<think>a</think> and </think>", 5)


async def a_thought_is_shown_live_folds_when_it_is_over_and_unfolds_again(d: Driver) -> None:
    await d.say("2 + 2?")
    await d.reply(THOUGHT, upto=3, finish=False)
    view = d.app.query_one(ThoughtView)
    assert "▾ thinking · " in d.screen()
    assert "First I" in d.screen()
    generate = d.link.last(Generate)
    rounds = rounds_of(THOUGHT, id=generate.id)
    await d.hear(*rounds[3:], ev.Finished(generate.id, "end", "", stats_of(rounds), 9.0))
    screen = d.screen()
    assert "▸ thought for 0.0 s, " in screen
    assert "First I" not in screen
    assert "The answer is four." in screen
    d.view.transcript.focus()
    await d.pilot.press("o")
    await d.pilot.pause()
    assert "Then I add <b>." in d.screen()
    await d.pilot.click(ThoughtView)
    assert not view.unfolded
    await d.pilot.press("f8")
    await d.pilot.pause()
    assert "<think>" in d.screen()


async def thoughts_are_not_sent_on_and_not_copied_but_kept(d: Driver) -> None:
    await d.say("2 + 2?")
    await d.reply(THOUGHT)
    assert d.app.chat.turns[-1].reply.text == THOUGHT
    await d.say("sure?")
    assert [m.content for m in d.link.last(Generate).messages] == [
        "2 + 2?", "The answer is **four**.\n", "sure?",
    ]  # fmt: skip
    await d.reply("yes")
    await d.say("/copy")
    d.view.transcript.focus()
    await d.pilot.press("k", "k", "k", "c")
    await d.pilot.pause()
    assert d.app.clipboard == "The answer is **four**.\n"


async def test_a_thought_that_the_template_opened_folds_as_soon_as_it_ends():
    text = "First I count.\n\nThen I add.\n\n" * 4 + "</think>\n\nThe answer is **four**.\n\nReally.\n"
    async with driving() as d:
        await d.say("2 + 2?")
        rounds = rounds_of(text, id=1)
        await d.reply(text, upto=len(rounds) - 6, finish=False)
        await d.hear(*rounds[-6:], ev.Finished(1, "end", "", stats_of(rounds), 9.0))
        screen = "\n".join(line[:60].rstrip() for line in d.screen().split("\n"))
        assert "▸ thought for " in screen
        assert "First I count" not in screen
        assert "</think>" not in screen
        assert "\n   The answer is four.\n" in screen
        assert screen.count("Really.") == 1


async def an_empty_thought_is_none(d: Driver) -> None:
    await d.say("2 + 2?")
    await d.reply("<think>\n\n</think>\n\nfour")
    assert not d.app.query_one(ThoughtView).display
    assert "\n   four\n" in "\n".join(line[:60].rstrip() for line in d.screen().split("\n"))


async def a_reply_without_thoughts_has_no_line_for_them(d: Driver) -> None:
    await d.say("hi")
    await d.reply("< thinking is overrated")
    assert not d.app.query_one(ThoughtView).display
    assert d.app.query_one(ReplyView).reply.text == "< thinking is overrated"
    assert "< thinking is overrated" in d.screen()


async def test_a_chat_that_fits_again_once_its_thoughts_are_folded_begins_at_the_top():
    async with driving(size=(80, 24)) as d:
        await d.say("2 + 2?")
        generate = d.link.last(Generate)
        rounds = rounds_of("<think>\n" + "First I count.\n\n" * 20 + "</think>\n\nFour.\n", id=generate.id)
        await d.hear(started(generate.messages, generate.id), *rounds[:-2])
        page = d.view.transcript
        assert page.scroll_y > 0, "the thoughts are longer than the window, and their end is shown"
        await d.hear(*rounds[-2:], ev.Finished(generate.id, "end", "", stats_of(rounds), 9.0))
        assert page.max_scroll_y == 0
        assert "2 + 2?" in d.screen().splitlines()[1]


async def test_thoughts_are_told_from_the_answer():
    await in_one_app(
        a_thought_is_shown_live_folds_when_it_is_over_and_unfolds_again,
        thoughts_are_not_sent_on_and_not_copied_but_kept,
        an_empty_thought_is_none,
        a_reply_without_thoughts_has_no_line_for_them,
    )
