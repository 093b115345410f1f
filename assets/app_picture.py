"""A picture of the app's screen as SVG."""

from __future__ import annotations

import re

from textual.app import App

_BELOW_LETTERS = 6
"""What hangs below the letters of the last line; Textual 8.2.8 cuts it off, and so every underscore there."""

_CLIP = re.compile(r'(clip-terminal">\s*<rect x="0" y="0" width="[\d.]+" height=")([\d.]+)')


def picture_of(app: App[object]) -> str:
    """The screen as it stands."""
    drawn = app.export_screenshot(title="specchat")
    whole, count = _CLIP.subn(lambda found: f"{found[1]}{float(found[2]) + _BELOW_LETTERS}", drawn)
    assert count == 1, "Textual writes its pictures in another way now"
    return whole
