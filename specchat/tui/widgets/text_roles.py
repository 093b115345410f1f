"""The styles of text roles, which app.tcss defines, looked up when a role is first drawn.

Textual's component classes would be matched against the style sheet for every widget and every update: two dozen roles
for each of the five widgets of a message, of which few are ever drawn.
"""

from __future__ import annotations

from typing import Any

from rich.style import Style
from textual.widget import Widget

from specchat.tui.draw.theme import ROLES
from specchat.tui.textual_patches.part_styles import styles_of_part


class RoleStyles(Widget):
    """A widget with styles by role."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self._styles: dict[str, Style] = {}

    def notify_style_update(self) -> None:
        """Drop the styles of the old theme."""
        self._styles.clear()
        super().notify_style_update()

    def style_of(self, role: str) -> Style:
        """A role's style in the current theme, on this widget's background."""
        if role not in self._styles:
            assert not role or role in ROLES, f"there is no role {role!r}"
            self._styles[role] = styles_of_part(self, f"role--{role}").rich_style if role else self.rich_style
        return self._styles[role]
