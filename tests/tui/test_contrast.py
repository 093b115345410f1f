"""What can be read has enough contrast in every theme of ours, whatever it stands on."""

from __future__ import annotations

import pytest
from driving import driving, wait_for
from rich.color import Color
from textual.widget import Widget

from specchat.tui.text.theme import DARK, OWN, ROLES
from specchat.tui.tree.clip_files import COLOURS
from specchat.tui.widgets.tinted_text import TintedText

LEAST = 4.5
"""What WCAG 2.1 asks for text of usual size (success criterion 1.4.3)."""

DRAWN = {"line", "river", "column"}
"""Roles of lines and columns alone, which no text has."""


def luminance(colour: Color) -> float:
    parts = [part / 255 for part in colour.get_truecolor()]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Color | None, other: Color | None) -> float:
    assert one is not None
    assert other is not None
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def too_faint(widget: TintedText) -> dict[str, float]:
    """The roles that cannot be read on this widget, with their contrast."""
    styles = {role: widget.style_of(role) for role in ROLES if role not in DRAWN}
    found = {role: contrast(style.color, style.bgcolor) for role, style in styles.items()}
    return {role: round(value, 2) for role, value in found.items() if value < LEAST}


def test_contrast_is_one_for_the_same_colour_and_21_for_black_on_white():
    black, white = Color.parse("#000000"), Color.parse("#ffffff")
    assert contrast(black, black) == 1.0
    assert contrast(black, white) == pytest.approx(21.0)


@pytest.mark.parametrize("theme", [theme.name for theme in OWN])
async def test_every_role_of_text_can_be_read_on_the_page_and_on_a_raised_box(theme):
    async with driving() as d:
        d.app.theme = theme
        await d.settle()
        page, box = TintedText(), TintedText()
        box.styles.background = d.app.theme_variables["surface"]
        parent: Widget = d.view.transcript
        await parent.mount(page, box)
        await wait_for(d.pilot, lambda: page.is_attached and box.is_attached)
        assert too_faint(page) == {}
        assert too_faint(box) == {}


def test_every_role_of_text_can_be_read_in_a_clip():
    page = Color.parse(DARK.background or "")
    faint = {role for role, colour in COLOURS.items() if contrast(Color.parse(colour), page) < LEAST}
    assert faint <= DRAWN
