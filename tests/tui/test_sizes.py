"""Every size works, from a wall to a slit; and what colour says is also said without it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from driving import driving
from fake import FakeLink, rounds_of
from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.geometry import Size
from textual.widgets import Markdown

import specchat
from specchat.config import AppOptions
from specchat.engine.protocol import events as ev
from specchat.tui.app import SpecchatApp
from specchat.tui.services.context import AppSetup
from specchat.tui.text.line_filters import AsciiFilter, needs_ascii

SOURCES = Path(specchat.__file__).parent


def fits(d) -> bool:
    width, height = d.app.size
    lines = d.app.screen._compositor.render_strips()
    return len(lines) == height and all(line.cell_length == width for line in lines)


@pytest.mark.parametrize("size", [(140, 44), (100, 30), (80, 24), (60, 16), (40, 12), (20, 5), (10, 3)])
async def test_a_reply_can_be_read_at_every_size(size):
    async with driving(size) as d:
        await d.say("How does it work?")
        await d.reply()
        assert fits(d)
        if size[1] >= 5:
            assert "sooner" in d.screen() or "plain" in d.screen() or "2.7×" in d.screen() or size[1] < 8
        for key in ("f2", "escape", "f3", "f3", "ctrl+t", "ctrl+t", "f8", "f8", "f4", "escape", "f1", "escape"):
            await d.pilot.press(key)
            await d.pilot.pause()
            assert fits(d)


async def test_resizing_while_streaming_and_back_changes_nothing_said():
    async with driving((120, 40)) as d:
        await d.say("How does it work?")
        rounds = await d.reply(upto=20, finish=False)
        for size in ((40, 12), (20, 5), (160, 50), (120, 40)):
            await d.pilot.resize_terminal(*size)
            await d.settle()
            assert d.app.size == Size(*size)
            assert fits(d)
        await d.hear(*rounds[20:])
        await d.hear(ev.Finished(1, "end", "", _stats(rounds), 9.0))
        assert "".join(view.source for view in d.app.query(Markdown)) == d.app.chat.turns[-1].reply.text
        assert d.app.query_one("#side").display
        assert not d.view.tree_strip.display


def _stats(rounds):
    from fake import stats_of

    return stats_of(rounds)


@pytest.mark.parametrize(("size", "panel"), [((120, 40), True), ((80, 24), True), ((59, 24), False), ((80, 12), False)])
async def test_the_tree_is_a_panel_where_there_is_room_and_a_line_elsewhere(size, panel):
    async with driving(size) as d:
        await d.say("hi")
        await d.reply(upto=8, finish=False)
        assert d.app.query_one("#side").display == panel
        assert d.view.tree_strip.display != panel
        assert "★" in (d.drawn(d.view.tree_panel) if panel else d.drawn(d.view.tree_strip))


async def test_the_tree_has_at_least_a_third_of_the_lines_while_a_reply_grows():
    async with driving((120, 40)) as d:
        await d.say("hi")
        await d.reply(upto=8, finish=False)
        assert d.view.tree_panel.size.height >= 40 / 3
        drawn = d.drawn(d.view.tree_panel).splitlines()
        assert drawn.index(next(line for line in drawn if "earlier rounds" in line)) >= 40 / 3


async def test_f3_shows_all_figures_then_none_then_the_most_important_ones():
    async with driving((120, 40)) as d:
        await d.say("hi")
        await d.reply(upto=8, finish=False)
        stats = d.view.stats
        brief = d.drawn(stats)
        assert "guesses  kept" in brief
        assert "speed-up" in brief
        assert not any(word in brief for word in ("plan", "checking", "memory"))
        await d.pilot.press("f3")
        await d.pilot.pause()
        assert all(word in d.drawn(stats) for word in (" % guessed", "plan", "checking", "memory"))
        await d.pilot.press("f3")
        await d.pilot.pause()
        assert not stats.display
        await d.pilot.press("f3")
        await d.pilot.pause()
        assert d.drawn(stats) == brief


async def test_the_tree_and_the_figures_can_be_hidden_and_the_text_takes_the_room():
    async with driving() as d:
        before = d.view.transcript.size.width
        await d.pilot.press("ctrl+t", "f3", "f3")
        await d.pilot.pause()
        assert d.view.transcript.size.width > before + 30
        await d.pilot.press("ctrl+t")
        await d.pilot.pause()
        assert d.view.transcript.size.width == before
        assert d.view.tree_panel.display
        assert not d.view.stats.display


async def test_without_colour_the_marks_and_styles_still_tell(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=8, finish=False)
        drawn = d.drawn(d.view.tree_panel)
        assert all(mark in drawn for mark in "●★✕○")
        rejected = d.view.tree_panel.style_of("rejected")
        accepted = d.view.tree_panel.style_of("accepted")
        assert rejected.strike
        assert accepted.bold
        assert not d.view.tree_panel.style_of("unreached").bold
        assert d.app.no_color


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)])
async def test_in_ascii_nothing_else_is_drawn_and_what_the_model_wrote_stays(size):
    async with driving(size, options=AppOptions(ascii=True)) as d:
        await d.say("hi")
        await d.reply(finish=False)
        for key in (None, "f2", "escape", "f4", "escape", "f1", "escape", "ctrl+p"):
            if key is not None:
                await d.pilot.press(key)
                await d.pilot.pause()
            assert {c for c in d.screen() if not c.isascii()} <= set("你好🎉犬")


def test_ascii_keeps_every_character_in_its_cells():
    filter = AsciiFilter("ascii")
    text = "● a━★ 犬 é 🎉 τ 2.7× ‖ ▁▂▃▄▅▆▇█ ╭─╮"
    (plain,) = filter.apply([Segment(text)], Color(0, 0, 0))
    assert plain.text.isascii()
    assert cell_len(plain.text) == cell_len(text)
    assert plain.text.startswith("* a=+ ?? ? ?? t 2.7x |")
    assert "犬 é" in AsciiFilter("utf-8").apply([Segment(text)], Color(0, 0, 0))[0].text


def _characters_shown() -> set[str]:
    """Every character of a text literal of the app, docstrings left out."""
    shown: set[str] = set()
    for path in [*(SOURCES / "tui").rglob("*.py"), SOURCES / "core" / "speedup.py"]:
        if path.parent.name in ("bench", "textual_patches") or path.name in ("line_filters.py", "clip_files.py"):
            continue  # scripted replies in other languages, tables of characters and a mark inside files
        tree = ast.parse(path.read_text("utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                shown.update(node.value)
    return shown


def test_every_character_of_the_app_has_one_in_ascii():
    filter = AsciiFilter("utf-8")  # that it writes UTF-8 does not tell whether the terminal reads it
    (plain,) = filter.apply([Segment(text := "".join(sorted(_characters_shown() - {"｜"})))], Color(0, 0, 0))
    assert [shown for shown, drawn in zip(text, plain.text, strict=True) if not drawn.isascii()] == []


@pytest.mark.parametrize(
    ("environment", "needed"),
    [({}, False), ({"LANG": "de_DE.UTF-8"}, False), ({"LANG": "en_US.utf8"}, False), ({"LC_ALL": "C"}, True),
     ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False), ({"LANG": "de_DE.ISO-8859-1"}, True),
     ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, False), ({"LC_ALL": "", "LANG": "POSIX"}, True)],
)  # fmt: skip
def test_the_locale_says_whether_ascii_is_needed(environment, needed):
    assert needs_ascii(environment) is needed


@pytest.mark.parametrize(("wanted", "level"), [(True, "full"), (False, "none")])
def test_animations_can_be_turned_off(wanted, level):
    assert SpecchatApp(AppSetup(FakeLink), settings={}, options=AppOptions(animations=wanted)).animation_level == level


async def test_themes_can_be_changed_while_streaming():
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=8, finish=False)
        for theme in ("specchat-light", "textual-dark", "specchat"):
            await d.say(f"/theme {theme}")
            await d.hear(*rounds_of()[8:9])
            assert d.app.theme == theme
            assert fits(d)
