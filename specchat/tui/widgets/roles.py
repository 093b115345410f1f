"""What widgets share that draw rows of (text, role): the styles of roles, which stand in app.tcss."""

from __future__ import annotations

from typing import Any

from rich.style import Style
from textual.dom import DOMNode
from textual.widget import Widget

from specchat.tui.theme import ROLES


class Roles(Widget):
    """Knows how a role looks on it.

    As component classes of Textual's, every role would be looked up for every widget whenever its styles are: five
    widgets stand in a message, and few of the roles in any of them.
    """

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self._styles: dict[str, Style] = {}

    def notify_style_update(self) -> None:
        """Forget the styles of the old theme."""
        self._styles.clear()
        super().notify_style_update()

    def style_of(self, role: str) -> Style:
        """A role's style in the current theme, on this widget's background."""
        if role not in self._styles:
            self._styles[role] = self._looked_up(role) if role else self.rich_style
        return self._styles[role]

    def _looked_up(self, role: str) -> Style:
        assert role in ROLES, f"there is no role {role!r}"
        stands_in = DOMNode(classes=f"role--{role}")
        stands_in._attach(self)
        self.app.stylesheet.apply(stands_in, animate=False)
        return stands_in.rich_style
