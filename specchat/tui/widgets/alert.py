"""What to do when there is no engine or no pair: one line that says why, and buttons."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Button

from specchat.tui.widgets.tinted import Tinted


class Alert(Vertical):
    """Shown only while something is wrong."""

    DEFAULT_CSS = """
    Alert {
        height: auto; max-height: 6; margin: 0 1; padding: 0 1; display: none;
        border-left: outer $error; background: $error 8%;
        & > Horizontal { height: 1; }
        & Button { margin: 0 2 0 0; min-width: 4; }
    }
    """
    CHOICES: ClassVar[dict[str, str]] = {
        "retry": "Try again (Ctrl+R)", "restart": "Restart the engine (Ctrl+R)", "pairs": "Another pair (F4)",
        "demo": "Watch the demo",
    }  # fmt: skip

    class Answered(Message):
        """The user pressed one of the buttons: `retry`, `restart`, `pairs` or `demo`."""

        def __init__(self, choice: str) -> None:
            super().__init__()
            self.choice = choice

    def compose(self) -> ComposeResult:
        """The line and every button; those that do not apply are hidden."""
        yield Tinted()
        with Horizontal():
            for choice, text in self.CHOICES.items():
                yield Button(text, id=choice, compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Say which."""
        event.stop()
        self.post_message(self.Answered(event.button.id or ""))

    def show(self, problem: str, choices: set[str]) -> None:
        """Show this problem and these ways out, or nothing if there is no problem."""
        self.display = bool(problem)
        self.query_one(Tinted).set([(problem, "bad")])
        for button in self.query(Button):
            button.display = button.id in choices
