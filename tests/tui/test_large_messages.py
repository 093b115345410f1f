"""A message of any size and content is drawn in small steps, cut with a remark, and never ends the app."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from driving import Driver, driving
from hypothesis import given, settings
from test_markdown_blocks import documents, shape
from textual.widgets import Markdown

from specchat.tui.state.attachments import split
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.turn import Reply, Turn
from specchat.tui.text.cells import clip, cut, first_lines, first_runs
from specchat.tui.text.markdown_blocks import MOST_PARSED, MOST_WIDGETS, STEP_WIDGETS, drawing_steps
from specchat.tui.widgets import messages
from specchat.tui.widgets.reply_view import FinishedMarkdown, ReplyView

DIGITS = f'hi\n\n<file path="x" lines="{"9" * 4_301}">\na\n</file>'
"""More digits than Python makes an int of."""

TOO_MUCH = {
    "a table of 10,000 rows": "| a | b |\n|---|---|\n" + "| x | y |\n" * 10_000,
    "a list of 10,000 items": "- item\n" * 10_000,
    "code of 50,000 lines": "```python\n" + "x = f(1)\n" * 50_000 + "```\n",
    "code of 50,000 tabs": "```\na" + "\t" * 50_000 + "b\n```\n",
    "a line of code": "```\n" + "你好🎉" * 20_000 + "\n```\n",
    "a word": "a" * 200_000 + "\n",
    "wide characters": "你好🎉" * 50_000 + "\n",
    "marks above each other": "a" + "\u0301" * 50_000 + "\n",
    "links": "[a](http://b.c/d) " * 5_000 + "\n",
    "brackets": "[" * 50_000 + "\n",
    "stars": "**a " * 20_000 + "\n",
    "a list in quotes": "".join(f"> - {'> ' * (n % 20)}x\n" for n in range(5_000)),
}


def lines_run(function: Callable[..., Any], *given: Any) -> int:
    """Lines of Python that a call runs, in whatever it calls too."""
    lines = 0

    def trace(frame: FrameType, event: str, value: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*given)
    finally:
        sys.settrace(before)
    return lines


def reply_turn(text: str) -> Turn:
    reply = Reply(0, Figures(), stop="end")
    reply.add(text, "target")
    return Turn("assistant", reply=reply)


async def opened(d: Driver, *turns: Turn) -> None:
    for turn in turns:
        d.app.chat.branches.add(turn)
    await d.view.transcript.restore(d.app.chat.turns)
    await d.settle()


@pytest.mark.parametrize("after", ["", "\nand more"])
def test_files_are_told_apart_in_time_proportional_to_the_text(after):
    def chain(files: int) -> str:
        return "hi\n\n" + "\n\n".join(['<file path="x" lines="1">\na\n</file>'] * files) + after

    few, many = lines_run(split, chain(100)), lines_run(split, chain(400))
    assert many < 5 * few
    assert len(split(chain(400))[1]) == (0 if after else 400)


def test_a_number_of_lines_that_no_int_can_be_is_text():
    assert split(DIGITS) == (DIGITS, [])


@settings(max_examples=300, deadline=None)
@given(documents)
def test_the_steps_are_the_text_and_draw_the_same_blocks(text):
    steps = drawing_steps(text)
    assert "".join(step.text for step in steps) == (text if text.strip() else "")
    assert [token for step in steps for token in shape(step.text)] == (shape(text) if text.strip() else [])


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_block_that_takes_too_long_is_drawn_as_text_and_the_rest_as_markdown(name):
    before, block, *rest = drawing_steps(f"before\n\n{TOO_MUCH[name]}\nafter\n")
    assert (before.text, before.widgets, block.widgets) == ("before\n\n", 1, 0)
    assert [step.text.strip() for step in rest] == (["after"] if len(TOO_MUCH[name]) < MOST_PARSED else [])


def test_a_long_text_is_drawn_in_steps_and_from_some_size_on_as_text():
    paragraphs = [f"paragraph **{n}**\n\n" for n in range(3_000)]
    steps = drawing_steps("".join(paragraphs))
    assert max(step.widgets for step in steps) == STEP_WIDGETS
    assert sum(step.widgets for step in steps) == MOST_WIDGETS
    assert steps[-1].text == "".join(paragraphs[MOST_WIDGETS:])
    assert [step.widgets for step in steps].count(0) == 1


def test_the_beginning_of_a_long_text_is_shown_with_a_remark():
    text = "\n".join(f"{n}: " + "x" * 3_000 for n in range(100))
    ((shown, _), (remark, _)) = first_lines(text, 10)
    assert shown.count("\n") == 9
    assert max(map(len, shown.split("\n"))) == 2_000
    assert remark == "\n… 90 more lines, 10,030 more characters"
    assert sum(len(run) for run, _ in first_lines(text, 100, 5_000)) < 5_100
    assert first_lines("a\nb") == [("a\nb", "text")]
    assert first_runs([("ab", "x"), ("cd", "y"), ("e", "x")], 3) == [
        ("ab", "x"),
        ("c", "y"),
        ("\n… 2 more characters", "dim"),
    ]
    assert first_runs([("ab", "x")], 2) == [("ab", "x")]


@pytest.mark.parametrize("character", ["a", "你", "\u0301", "\u200b"])
def test_cutting_a_text_looks_at_no_more_of_it_than_fits(character):
    for draw in (cut, lambda text, cells: clip([(text, "")], cells)):
        _, few, many = (lines_run(draw, character * size, 10) for size in (1_000, 1_000, 100_000))
        assert few == many


async def test_messages_that_are_too_large_are_cut_and_take_few_widgets():
    async with driving() as d:
        files = "\n\n".join(['<file path="x" lines="1">\na\n</file>'] * 3_000)
        await opened(d, Turn("user", f"hi\n\n{files}"))
        await d.until("2,900 more files")
        await opened(d, Turn("user", DIGITS))
        await d.until("… 2,325 more characters")
        for name in ("a table of 10,000 rows", "code of 50,000 lines", "code of 50,000 tabs", "brackets"):
            await opened(d, reply_turn(f"before\n\n{TOO_MUCH[name]}"))
            assert len(d.app.screen.walk_children()) < 100, name
            (view,) = [view for view in d.view.transcript.views if view.turn is d.app.chat.turns[-1]]
            assert " more " in "".join(plain.text for plain in view.query(".plain").results()), name


async def test_a_view_that_is_asked_for_its_reply_before_it_has_parts_shows_it_when_it_has():
    async with driving() as d:
        reply = reply_turn("hello").reply
        assert reply is not None
        view = ReplyView(reply)
        mounted = d.view.transcript.mount(view)
        await view.show_new()
        await mounted
        await d.settle()
        assert "hello" in d.screen()


async def test_a_long_reply_is_mounted_step_by_step():
    async with driving() as d:
        mounted: list[int] = []

        async def extend(self: FinishedMarkdown, text: str, extend: Any = FinishedMarkdown.extend) -> None:
            await extend(self, text)
            mounted.append(len(d.app.query(Markdown)))
            mounted.append(len(self.children))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FinishedMarkdown, "extend", extend)
            await opened(d, reply_turn("one of very many\n\n" * 1_000 + "the last one"))
            await d.until("the last one")
            await d.settle()
        assert mounted == [1, 240, 2, 240, 3, 240, 4, 240, 4, 281]


@pytest.mark.parametrize("finished", [False, True])
async def test_a_message_that_cannot_be_drawn_is_shown_as_text_and_the_log_says_why(finished, monkeypatch, caplog):
    def fails(*_: object) -> None:
        raise ValueError("planted")

    async with driving() as d:
        monkeypatch.setattr(FinishedMarkdown, "extend", fails)
        await opened(d, reply_turn("a **reply** of these days\n"))
        assert "a **reply** of these days" in d.screen()
        monkeypatch.setattr("specchat.tui.widgets.reply_view.Thoughts.feed", fails)
        await d.say("hi")
        await d.reply("some **other** words\n\nand more\n", finish=finished)
        assert "some **other** words" in d.screen()
        monkeypatch.setattr(messages.attachments, "split", fails)
        await opened(d, Turn("user", "a question\nof two lines"))
        assert "of two lines" in d.screen()
        assert d.app.crash is None
    assert caplog.text.count("cannot be drawn") >= 3
    assert "planted" in caplog.text
