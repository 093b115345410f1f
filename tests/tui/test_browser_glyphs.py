"""In a browser every sign of the app is one that it can draw."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import driving
from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.widgets import Markdown

import specchat.tui
from specchat.tui.text.line_filters import PLAINER, BrowserGlyphFilter

DRAWN_BY_THE_PAGE = {chr(code) for code in range(0x2500, 0x25A0)}
"""Boxes and blocks, which xterm.js paints itself."""

OF_EVERY_FONT = set("←↑→↓↔↕■□▪▫▬▲►▼◄◊○●◘◙◦☺☻☼♀♂♠♣♥♦♪♫√")
"""Symbols of WGL4, which monospaced fonts of all systems have."""

APART = ("ascii.py", "browser_glyphs.py", "scripted_engine.py")


def own_signs() -> set[str]:
    """Every character beyond ASCII in the app's sources, the bullets of Markdown, and the symbols of control codes."""
    files = [path for path in Path(specchat.tui.__file__).parent.rglob("*") if path.suffix in (".py", ".tcss")]
    texts = [path.read_text() for path in files if path.name not in APART]
    signs = {sign for text in [*texts, *Markdown.BULLETS] for sign in text if not sign.isascii()}
    return signs | {chr(code) for code in range(0x2400, 0x2421)} | {"␡", "⟨", "⟩"}


def test_every_sign_is_in_the_font_that_comes_along_or_replaced_by_one_that_is():
    font_tools = pytest.importorskip("fontTools.ttLib")
    served = pytest.importorskip("textual_serve")
    fonts = Path(served.__file__).parent / "static" / "fonts"
    known = set(map(chr, font_tools.TTFont(fonts / "RobotoMono-VariableFont_wght.ttf").getBestCmap()))
    known |= DRAWN_BY_THE_PAGE | OF_EVERY_FONT
    assert {sign for sign in own_signs() if not set(sign.translate(PLAINER)) <= known} == set()


def test_a_replacement_takes_the_same_cells():
    assert [chr(code) for code, plain in PLAINER.items() if cell_len(chr(code)) != cell_len(plain)] == []


def test_signs_are_replaced_and_boxes_are_not():
    segments = [Segment("●━★ ✕"), Segment("plain")]
    replaced = BrowserGlyphFilter().apply(segments, Color.parse("black"))
    assert [segment.text for segment in replaced] == ["●━♦ ×", "plain"]


async def test_a_terminal_keeps_its_signs():
    async with driving() as d:
        assert "●━●━★" in d.screen()
