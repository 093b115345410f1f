"""The alert for problems that need a choice: one line that says why, and buttons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Button

from specchat.tui.text.key_names import label_of
from specchat.tui.widgets.tinted_text import TintedText


class Alert(Vertical):
    """Visible only while there is a problem."""

    DEFAULT_CSS = """
    Alert {
        height: auto; max-height: 6; margin: 0 1; padding: 0 1; display: none;
        border-left: outer $error; background: $error 8%;
        & > Horizontal { height: 1; }
        & Button { margin: 0 2 0 0; min-width: 4; }
    }
    """
    CHOICES: ClassVar[dict[str, tuple[str, str]]] = {
        "retry": ("Try again", "restart"), "restart": ("Restart the engine", "restart"),
        "pairs": ("Another pair", "pair"), "demo": ("Watch the demo", ""),
        "leave_out": ("Drop oldest", ""), "summary": ("Summarise", ""), "back": ("Back", ""),
    }  # fmt: skip

    @dataclass
    class Answered(Message):
        choice: str  # of `CHOICES`

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._problem = TintedText()
        self._buttons: list[Button] = []

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.post_message(self.Answered(event.button.id or ""))

    def take_focus(self) -> None:
        if (button := next((one for one in self._buttons if one.display and self.display), None)) is not None:
            button.focus()

    def show(self, problem: str, choices: set[str]) -> None:
        """Show this problem with these choices; hide the alert if there is no problem."""
        self.display = bool(problem)
        if not self._buttons:  # most chats never have a problem
            self._buttons = [self._button(choice) for choice in self.CHOICES]
            self.mount(self._problem, Horizontal(*self._buttons))
        self._problem.set([(problem, "bad")])
        for button in self._buttons:
            button.display = button.id in choices

    def _button(self, choice: str) -> Button:
        text, binding = self.CHOICES[choice]
        key = label_of(self, binding)
        return Button(f"{text} ({key})" if key else text, id=choice, compact=True)
