"""The screen of a training: its stages while it runs, its verdict at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from specchat.engine.protocol.text import visible
from specchat.tui.state.training import Training, training_lines
from specchat.tui.text.key_names import hint
from specchat.tui.widgets.painted_lines import LinesView

Answer = Literal["stop", "use"]
"""Stop the training, or use what was trained from now on."""


class TrainingScreen(ModalScreen[None]):
    """Draws the training; leaving it changes nothing, and the training goes on."""

    DEFAULT_CSS = """
    TrainingScreen { align: center middle; background: $background 60%; }
    TrainingScreen > Vertical {
        width: 84; max-width: 100%; height: 26; max-height: 100%; padding: 0 1; border: round $primary;
        border-title-color: $primary; border-subtitle-color: $quiet-color; background: $surface;
    }
    TrainingScreen LinesView { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close; the training goes on", show=False, id="training.close"),
        Binding("s", "stop", "stop the training and keep the best", show=False, id="training.stop"),
        Binding("u", "use", "use what was trained from now on", show=False, id="training.use"),
    ]

    def __init__(self, training: Training, answer: Callable[[Answer], object]) -> None:
        """The screen; `answer` is called with what the user wants to happen."""
        super().__init__()
        self._training, self._answer = training, answer
        self._box = Vertical()
        self._view = LinesView(lambda width, height: training_lines(self._training, width, height))

    def compose(self) -> ComposeResult:
        """One box."""
        with self._box:
            yield self._view

    def on_mount(self) -> None:
        """Draw."""
        self._draw()

    def show(self) -> None:
        """Draw what is known now."""
        if self.is_mounted:
            self._draw()

    def action_stop(self) -> None:
        """Stop a training that runs."""
        if not self._training.ended:
            self._answer("stop")

    def action_use(self) -> None:
        """Use it, if it is quicker and not used yet."""
        if self._can_be_used:
            self._answer("use")

    @property
    def _can_be_used(self) -> bool:
        judged = self._training.judged
        return self._training.phase == "done" and judged is not None and bool(judged.best) and not self._training.used

    def _draw(self) -> None:
        request = self._training.request
        self._box.border_title = visible(f"{request.name}: {request.drafter} for {request.pair}")
        close = hint(self, "training.close", "closes" if self._training.ended else "closes, the training goes on")
        own = hint(self, "training.use", "uses it from now on", " · ") if self._can_be_used else ""
        own = own if self._training.ended else hint(self, "training.stop", "stops it", " · ")
        self._box.border_subtitle = close + own
        self._view.repaint()
