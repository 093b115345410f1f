"""Every key of the prompt works wherever the cursor stands, and everything that was written can be undone."""

from __future__ import annotations

import pytest
from driving import driving
from textual import events
from textual.widgets import TextArea

TEXTS = ["", "one line", "one\n", "one\ntwo\nthree"]
KEYS = [key for binding in TextArea.BINDINGS for key in binding.key.split(",") if key != "ctrl+c"]  # it may quit
LINES = [f"line {number}" for number in range(12)]


def places(text: str) -> list[tuple[int, int]]:
    """The beginning and the end of every line."""
    return [place for row, line in enumerate(text.split("\n")) for place in {(row, 0), (row, len(line))}]


@pytest.mark.parametrize("text", TEXTS)
async def test_every_key_works_at_every_place_of_the_prompt(text):
    async with driving() as d:
        prompt = d.view.prompt
        for key in KEYS:
            for place in places(text):
                prompt.text = text
                prompt.move_cursor(place)
                prompt.focus()
                await d.pilot.press(key)
                assert d.app.is_running, f"{key} at {place} of {text!r}"
                prompt.undo()
                assert prompt.text == text, f"{key} at {place}, undone"


@pytest.mark.parametrize("key", ["ctrl+k", "ctrl+x", "ctrl+shift+k"])
async def test_a_key_that_deletes_a_line_deletes_the_last_one_too(key):
    async with driving() as d:
        prompt = d.view.prompt
        prompt.write("one\ntwo")
        await d.pilot.press("home", key)
        assert prompt.text == "one\n"
        await d.pilot.press(key)
        assert prompt.text == "one\n"


async def test_cutting_nothing_leaves_the_clipboard_as_it_is():
    async with driving() as d:
        d.view.prompt.write("kept")
        await d.pilot.press("ctrl+x", "ctrl+x")
        assert (d.app.clipboard, d.view.prompt.text) == ("kept", "")


async def test_a_short_paste_that_made_the_prompt_scroll_is_undone_and_redone():
    async with driving(size=(80, 24)) as d:
        prompt = d.view.prompt
        prompt.post_message(events.Paste("\n".join(LINES)))
        await d.pilot.pause()
        assert prompt.max_scroll_y > 0
        await d.pilot.press("ctrl+underscore")
        assert prompt.text == ""
        await d.pilot.press("ctrl+y")
        assert prompt.text == "\n".join(LINES)
        assert prompt.cursor_location == prompt.document.end


async def test_lines_that_made_the_prompt_scroll_are_undone_one_after_another_and_a_deletion_is_redone():
    async with driving(size=(80, 24)) as d:
        prompt = d.view.prompt
        for line in LINES:
            await d.pilot.press(*line.replace(" ", "_"), "ctrl+j")
        for _ in range(40):
            await d.pilot.press("ctrl+underscore")
        assert prompt.text == ""
        for _ in range(40):
            await d.pilot.press("ctrl+y")
        assert prompt.text == "".join(line.replace(" ", "_") + "\n" for line in LINES)
        await d.pilot.press("f7", "delete", "ctrl+underscore", "ctrl+y")
        assert prompt.text == ""
