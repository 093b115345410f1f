"""How parts of a widget look, found out when they are drawn: the roles of a row's runs, which stand in app.tcss.

Textual matches its component classes against the stylesheet for every widget, whenever its styles are: two dozen roles
for each of five widgets in a message, and few of them are ever drawn in any one.
"""

from __future__ import annotations

from typing import Any

from rich.style import Style
from textual.css.styles import RenderStyles
from textual.dom import DOMNode
from textual.widget import Widget

from specchat.tui.draw.theme import ROLES


def styles_of_part(widget: DOMNode, *names: str) -> RenderStyles:
    """The styles of what has these classes inside a widget."""
    part = DOMNode(classes=" ".join(names))
    part._attach(widget)
    widget.app.stylesheet.apply(part, animate=False)
    return part.styles


class Roles(Widget):
    """Knows how a role looks on it."""

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
            assert not role or role in ROLES, f"there is no role {role!r}"
            self._styles[role] = styles_of_part(self, f"role--{role}").rich_style if role else self.rich_style
        return self._styles[role]
