"""Pastes in the prompt: long ones are shown as one word and sent in full."""

from __future__ import annotations

from driving import Driver, in_one_app
from textual import events

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Count


async def paste(d, text: str) -> None:
    d.view.prompt.post_message(events.Paste(text))
    await d.pilot.pause()


async def a_long_paste_is_one_word_in_the_prompt_and_sent_in_full(d: Driver) -> None:
    text = "\n".join(f"line {n}" for n in range(5012))
    await d.pilot.press(*"see ")
    await paste(d, text.replace("\n", "\r\n"))
    await d.pilot.press("!")
    assert d.view.prompt.text == "see [pasted 5,012 lines]!"
    await d.pilot.press("enter")
    await d.pilot.pause()
    await d.hear(ev.Counted(d.link.last(Count).id, 8000, 8192))
    assert d.generates()[0].messages[0].content == f"see {text}!"
    await d.pilot.press("up")
    assert d.view.prompt.text == "see [pasted 5,012 lines]!"


async def a_paste_is_deleted_as_a_whole_and_never_broken(d: Driver) -> None:
    await paste(d, "y" * 3000)
    label = "[pasted 3,000 characters]"
    await d.pilot.press("a", "left", "left", "left", "x")
    assert d.view.prompt.text == label + "xa"
    await d.pilot.press("left", "backspace")
    assert d.view.prompt.text == "xa"
    await d.pilot.press("ctrl+z")
    assert label in d.view.prompt.text
    assert "y" * 3000 in d.view.prompt.full_text


async def two_pastes_of_one_size_are_told_apart(d: Driver) -> None:
    await paste(d, "a" * 2500)
    await paste(d, "b" * 2500)
    assert d.view.prompt.full_text == "a" * 2500 + "b" * 2500


async def a_short_paste_is_text(d: Driver) -> None:
    await paste(d, "two\r\nlines")
    assert d.view.prompt.text == "two\nlines"


async def five_megabytes_are_one_word_too(d: Driver) -> None:
    text = "word " * 1_000_000
    await paste(d, text)
    assert len(d.view.prompt.text) < 40
    assert d.view.prompt.full_text == text


async def test_pastes_in_the_prompt():
    await in_one_app(
        a_long_paste_is_one_word_in_the_prompt_and_sent_in_full,
        a_paste_is_deleted_as_a_whole_and_never_broken,
        two_pastes_of_one_size_are_told_apart,
        a_short_paste_is_text,
        five_megabytes_are_one_word_too,
    )
