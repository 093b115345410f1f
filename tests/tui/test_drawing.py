"""Drawing is sparing and true: little is drawn, and what a terminal was sent is what the screen shows."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any

import pytest
from driving import PATIENCE_S, Driver, driving
from fake import rounds_of, started, stats_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from textual._compositor import Compositor, LayoutUpdate
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.geometry import Size
from textual.layouts.horizontal import HorizontalLayout
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from specchat.engine.protocol import events as ev
from specchat.tui.services.event_pump import EventPump
from specchat.tui.textual_patches.compositing import DiffingCompositor, MainScreen, PartialUpdate, render_strip
from specchat.tui.textual_patches.markdown import ListItem
from specchat.tui.widgets.tinted_text import TintedText

pytestmark = pytest.mark.usefixtures("drawing_at_once")


class Screen:
    """What a terminal would show: every update is written over what was there."""

    def __init__(self, d: Driver) -> None:
        self._d = d
        self._lines: list[str] = []
        self.written = 0
        self.fulls = 0
        display = d.app._display

        def shown(screen, renderable) -> None:
            if isinstance(renderable, PartialUpdate):
                for y, x, strip in renderable._strips:
                    self._write(y, x, strip)
            elif isinstance(renderable, LayoutUpdate):
                self.fulls += 1
                self._lines = [_cells("".join(strip.text for strip in line)) for line in renderable.strips]
            elif renderable is not None:  # of another screen, which Textual's own compositor draws
                self._lines = [_cells(line.text) for line in screen._compositor.render_strips()]
            display(screen, renderable)

        d.app._display = shown

    def _write(self, y: int, x: int, strip: Strip) -> None:
        self.written += strip.cell_length
        cells = _cells(strip.text)
        self._lines[y] = self._lines[y][:x] + cells + self._lines[y][x + len(cells) :]

    def is_true(self) -> bool:
        """Whether it shows what Textual's own compositor draws from back to front."""
        compositor = self._d.app.screen._compositor
        truth = Compositor._render_chops(compositor, compositor.size.region, lambda y: True)
        return self._lines == [_cells(Strip.join(line.values()).text) for line in truth]


def _cells(text: str) -> list[str]:
    """One entry per terminal cell; the second half of a wide character is empty."""
    cells: list[str] = []
    for character in text:
        wide = Strip([_segment(character)]).cell_length
        if wide:
            cells += [character, *[""] * (wide - 1)]
        elif cells:
            cells[-1] += character
    return cells


def _segment(text: str):
    from rich.segment import Segment

    return Segment(text)


@asynccontextmanager
async def watched(size=(120, 40)):
    async with driving(size) as d:
        screen = Screen(d)
        d.app.refresh()
        await d.settle()
        yield d, screen


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_the_terminal_shows_what_the_screen_holds_while_a_reply_is_written(size):
    async with watched(size) as (d, screen):
        assert isinstance(d.app.screen._compositor, DiffingCompositor)
        await d.say("How does it work?")
        rounds = rounds_of()
        await d.hear(started([], 1))
        for begin in range(0, len(rounds), 3):
            await d.hear(*rounds[begin : begin + 3])
            assert screen.is_true()
        await d.hear(ev.Finished(1, "end", "", stats_of(rounds), 9.0))
        assert screen.is_true()


async def test_the_terminal_shows_what_the_screen_holds_after_screens_menus_scrolling_and_other_sizes():
    async with watched() as (d, screen):
        await d.say("How does it work?")
        await d.reply()
        await d.say("And then?")
        await d.reply(upto=20, finish=False)
        for key in ("f1", "escape", "f4", "escape", "f2", "escape", "f3", "f3", "ctrl+t", "ctrl+t", "f8", "f8"):
            await d.pilot.press(key)
            await d.settle()
            assert screen.is_true(), key
        for size in ((60, 20), (40, 12), (120, 40)):
            await d.pilot.resize_terminal(*size)
            await d.settle()
            assert screen.is_true(), size
        d.view.transcript.scroll_to(y=3, animate=False)
        await d.settle()
        assert screen.is_true()
        await d.hear(*rounds_of(id=2)[20:30])
        assert screen.is_true()


async def test_at_the_start_every_widget_is_styled_once_and_laid_out_for_the_size_of_the_window(
    monkeypatch: pytest.MonkeyPatch,
):
    styled: Counter[DOMNode] = Counter()
    classes = []
    apply, resized, lay_out = Stylesheet.apply, [], MainScreen._refresh_layout

    def counted(self: Stylesheet, node: DOMNode, **options: Any) -> None:
        styled[node] += 1
        apply(self, node, **options)

    def noted(self: MainScreen, size: Size | None = None, scroll: bool = False) -> None:
        classes.append(self.classes)
        resized.append(size is not None)
        lay_out(self, size, scroll)

    parsed = []
    reparse = Stylesheet.reparse
    monkeypatch.setattr(Stylesheet, "reparse", lambda self: parsed.append(reparse(self)))
    monkeypatch.setattr(Stylesheet, "apply", counted)
    monkeypatch.setattr(MainScreen, "_refresh_layout", noted)
    async with driving((80, 24), loaded=False) as d:
        await d.settle()
        focused = {d.view.prompt, *d.view.prompt.ancestors}
        once = set(d.view.walk_children()) - focused
        assert len(once) > 15
        assert {widget: styled[widget] for widget in once if styled[widget] > 1} == {}
        assert set(classes) == {frozenset({"-w80", "-h20"})}
        assert sum(resized) == 1
        assert not parsed
        before = {widget: dict(widget._css_styles.get_rules()) for widget in once}
        d.view.update_node_styles(animate=False)
        assert {widget: dict(widget._css_styles.get_rules()) for widget in once} == before
        await d.pilot.resize_terminal(120, 40)
        await d.settle()
        assert d.view.classes == {"-w100", "-h30"}
        dark = d.view.prompt.rich_style
        d.app.theme = "specchat-light"
        await d.settle()
        assert len(parsed) == 1
        assert d.view.prompt.rich_style != dark
        assert d.view.size == (120, 40)


@pytest.mark.parametrize("joined_cells", [2, 6])
async def test_what_stands_beside_a_family_of_emoji_is_at_its_place(joined_cells):
    """Whether the terminal draws the family in 2 cells, as measured, or each member in 2 of its own."""
    family = "👨\u200d👩\u200d👧"
    segments = [Segment("ab"), Segment(family), Segment("cd")], [Segment("ab👨\u200d"), Segment("👩\u200d👧 d")]
    for strip in map(Strip, segments):
        written = render_strip(0, 3, strip, Console(color_system=None))
        cells = ["?"] * 40  # what was there before
        x = 3
        for move, text in re.findall(r"\x1b\[1;(\d+)H|([^\x1b]+)", written):
            if move:
                x = int(move) - 1
                continue
            for character in text.replace(family, "F" * joined_cells):
                wide = 0 if character == "\u200d" else cell_len(character)
                cells[x : x + wide] = [character, *[""] * (wide - 1)][:wide]
                x += wide
        assert "?" not in cells[3 : 3 + strip.cell_length]
        assert cells[3 + strip.cell_length - 1] == "d"


async def test_a_round_that_changes_a_few_lines_writes_a_small_part_of_the_screen():
    async with watched() as (d, screen):
        await d.say("hi")
        await d.reply(upto=10, finish=False)
        before, fulls = screen.written, screen.fulls
        await d.hear(rounds_of()[10])
        assert 0 < screen.written - before < 120 * 40 / 3
        assert screen.fulls == fulls


async def test_a_tick_that_changes_nothing_writes_nothing():
    async with watched() as (d, screen):
        await d.say("hi")
        await d.reply()
        before = screen.written
        await d.hear(ev.Counted(1, 2, 3))
        assert screen.written == before


async def test_what_changes_within_a_batch_is_drawn_when_the_batch_ends():
    async with watched() as (d, screen):
        with d.app.batch_update():
            d.view.status.hint("something else")
            await asyncio.sleep(0.1)  # the screen was idle meanwhile, and drew nothing
            assert not screen.is_true()
        async with asyncio.timeout(PATIENCE_S):
            while not screen.is_true():
                await asyncio.sleep(0.02)  # nothing else happens


@given(
    st.lists(st.tuples(st.text("ab \n你🎉é-", max_size=12), st.sampled_from(["drafted", "target"])), max_size=40),
    st.integers(1, 12),
)
@settings(deadline=None)
def test_text_that_grows_wraps_like_text_that_was_there_at_once(runs, width):
    grown, whole = TintedText(), TintedText(runs)
    for tinted in (grown, whole):
        tinted._set_width(width)
    for run in runs:
        grown.add([run])
    assert grown._screen_lines == whole._screen_lines
    assert grown._screen_lines == whole._screen_lines
    assert grown.text == whole.text


@given(st.lists(st.text("ab \n你", max_size=8), max_size=20), st.integers(0, 8), st.integers(3, 9))
@settings(deadline=None)
def test_lines_that_leave_take_their_screen_lines_with_them(texts, count, width):
    grown, rest = TintedText([(text, "drafted") for text in texts]), TintedText()
    grown._set_width(width)
    rest._set_width(width)
    rest.add([("\n".join(grown.text.split("\n")[count:]), "drafted")])
    grown.drop_lines(count)
    assert grown._screen_lines == rest._screen_lines
    assert grown.text == rest.text


async def test_what_is_not_drawn_at_once_is_drawn_soon_and_without_another_event():
    ticked = asyncio.Event()
    now = [100.0]
    pump = EventPump(ticked.set, clock=lambda: now[0], cost=lambda: 0.0)
    pump.begin()
    assert pump.is_due("tree", 0.05)
    pump.end()
    assert pump.idle
    pump.begin()
    assert not pump.is_due("tree", 0.05)
    pump.end()
    assert not pump.idle
    await asyncio.wait_for(ticked.wait(), PATIENCE_S)
    now[0] += 0.2
    assert pump.begin()
    assert pump.is_due("tree", 0.05)
    pump.end()
    assert pump.idle


async def test_what_a_key_draws_too_soon_is_drawn_later_without_an_event():
    drawn = asyncio.Event()
    pump = EventPump(drawn.set, clock=lambda: 100.0, cost=lambda: 0.0)
    assert pump.is_due("tree", 0.02)
    assert pump.idle
    assert not pump.is_due("tree", 0.02), "between two ticks, so no end of a tick schedules it"
    assert not pump.idle
    await asyncio.wait_for(drawn.wait(), PATIENCE_S)


async def test_an_event_does_not_wait_for_a_later_redraw():
    ticked = asyncio.Event()
    pump = EventPump(ticked.set, clock=lambda: 100.0, cost=lambda: 0.0)
    pump.start()
    pump.mark_drawn("clock", 3600.0)
    pump.wake()
    await asyncio.wait_for(ticked.wait(), PATIENCE_S)


async def test_an_item_more_measures_nothing_that_stands_already(monkeypatch: pytest.MonkeyPatch):
    measured: list[Widget] = []
    model = Widget._get_box_model

    def counted(self: Widget, *given: Any, **named: Any) -> Any:
        known = len(self._box_model_cache)
        found = model(self, *given, **named)
        if len(self._box_model_cache) != known:
            measured.append(self)
        return found

    async with driving() as d:
        await d.say("Go on.")
        await d.reply("A paragraph, and another.\n\n" * 60 + "word " * 400, finish=False)
        view = d.view.transcript.reply_view()
        assert view is not None
        await d.settle()
        monkeypatch.setattr(Widget, "_get_box_model", counted)
        height = view.size.height
        while view.size.height == height:
            view.reply.add("more words ", "target")
            await view.show_new()
            await d.settle()
        assert len(view.query(MarkdownBlock)) > 50
        assert not [widget for widget in measured if isinstance(widget, Markdown | MarkdownBlock)]


async def test_scrolling_and_then_changing_something_lays_out_everything_once(monkeypatch: pytest.MonkeyPatch):
    arranged: list[bool] = []
    arrange = Compositor._arrange_root

    def counted(self: Compositor, root: Widget, size: Size, visible_only: bool = True) -> Any:
        arranged.append(visible_only)
        return arrange(self, root, size, visible_only)

    async with driving() as d:
        await d.say("Go on.")
        await d.reply("A paragraph, and another.\n\n" * 60)
        d.view.transcript.scroll_to(y=20, animate=False, immediate=True)
        await d.settle()
        monkeypatch.setattr(Compositor, "_arrange_root", counted)
        d.app.screen._compositor._full_map_invalidated = True  # as after a scroll
        d.app.screen._refresh_layout()
        assert d.view.transcript.views[0].region
        assert arranged == [False]


async def test_an_item_of_a_list_stands_in_three_widgets_and_is_laid_out_once(monkeypatch: pytest.MonkeyPatch):
    sizes: dict[Widget, set[Size]] = {}
    arrange = HorizontalLayout.arrange

    def counted(self: HorizontalLayout, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> Any:
        sizes.setdefault(parent, set()).add(size)
        return arrange(self, parent, children, size, greedy)

    monkeypatch.setattr(HorizontalLayout, "arrange", counted)
    async with driving() as d:
        await d.say("Go on.")
        await d.reply("".join(f"- item {number} of **many**\n" for number in range(60)))
        blocks = d.view.transcript.query(MarkdownBlock)
        items = [widget for widget in sizes if isinstance(widget, ListItem)]
        assert len(items) == 60
        assert all(len(sizes[item]) == 1 for item in items)
        assert all(len(item.query("*")) == 2 for item in items)
        assert len(blocks) == 61
