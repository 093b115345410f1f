"""The screens of a training: the dialog that asks what drafter is to be trained, and its stages and verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from specchat.engine.protocol.text import visible
from specchat.errors import SpecchatError, UsageError
from specchat.training.limits import CHATS
from specchat.tui.services.training_runner import Estimate
from specchat.tui.state.training import Training, TrainingChoices, estimate_text, training_lines
from specchat.tui.text.cells import ScreenLine
from specchat.tui.text.key_names import hint
from specchat.tui.widgets.painted_lines import LinesView
from specchat.tui.widgets.prompt import LineInput
from specchat.tui.widgets.tinted_text import TintedText

_LINES = (
    ("drafter", "drafter", "hydra, eagle, medusa, …"),
    ("start", "begin with", "a drafter's name; empty: nothing"),
    ("prompts", "prompts", "self, chats or a file"),
    ("tokens", "tokens", "of replies to learn from"),
    ("hours", "hours", "of learning at most; 0: any"),
    ("name", "name", "of the drafter"),
)
"""The input's id, what stands before it, and what behind it."""
_CHATS_ARE_READ = "What you wrote in your chats is read. Texts and drafter stay on this machine."


class TrainForm(ModalScreen[TrainingChoices | None]):
    """Six inputs; its result is what is to be trained."""

    DEFAULT_CSS = """
    TrainForm { align: center middle; background: $background 60%; }
    TrainForm > Vertical {
        width: 76; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; overflow-y: auto;
        border: round $primary; border-title-color: $primary; border-subtitle-color: $quiet-color;
        background: $surface;
    }
    TrainForm Horizontal { height: 1; }
    TrainForm Horizontal TintedText { width: 11; }
    TrainForm Horizontal .-what { width: 1fr; padding: 0 0 0 1; height: 1; }
    TrainForm Input { width: 28; border: none; padding: 0 1; height: 1; background: $panel; }
    TrainForm Input:focus { border: none; background: $primary 20%; }
    TrainForm #said { height: auto; max-height: 5; margin: 1 0 0 0; }
    TrainForm.-w0 .-what { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", show=False, id="train_form.close"),
        Binding("down", "app.focus_next", "the next line", show=False, id="train_form.next"),
        Binding("up", "app.focus_previous", "the line above", show=False, id="train_form.previous"),
    ]

    def __init__(self, suggested: Callable[[str], TrainingChoices], estimate: Estimate) -> None:
        super().__init__()
        self._suggested, self._estimate = suggested, estimate
        self._first = suggested("hydra")

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = f"train a drafter for {self._first.pair}"
            box.border_subtitle = "Enter begins" + hint(self, "train_form.close", "closes", " · ")
            for id, name, what in _LINES:
                with Horizontal():
                    yield TintedText([(name, "dim")])
                    yield LineInput(_shown(getattr(self._first, id)), id=id, select_on_focus=False)
                    yield TintedText([(what, "dim")], classes="-what")
            yield TintedText(id="said")

    def on_mount(self) -> None:
        self.query_one("#drafter").focus()
        self._judge()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say what this would take; the name follows the drafter until it is the user's own."""
        if event.input.id == "drafter":
            name = self.query_one("#name", Input)
            if name.value == self._first.name:
                self._first = self._suggested(self._text("drafter") or self._first.drafter)
                name.value = self._first.name
        self._judge()

    def on_input_submitted(self) -> None:
        if (request := self._judge()) is not None:
            self.dismiss(request)

    def _judge(self) -> TrainingChoices | None:
        try:
            request = self._request()
            cost = self._estimate(request)
        except SpecchatError as error:
            self._say([(f"✕ {error}", "bad")])
            return None
        words = [*estimate_text(cost.disk_bytes, cost.seconds, cost.free_bytes)]
        self._say([*words, *([("\n" + _CHATS_ARE_READ, "warn")] if request.prompts == CHATS else [])])
        return request

    def _request(self) -> TrainingChoices:
        tokens, hours = self._text("tokens").replace(",", "").replace("_", ""), self._text("hours")
        if not (tokens.isascii() and tokens.isdecimal() and len(tokens) < 12):
            raise UsageError(f"tokens: {tokens or 'nothing'} is not a whole number")
        try:
            limit = float(hours or "0")
        except ValueError:
            raise UsageError(f"hours: {hours} is not a number") from None
        return TrainingChoices(
            pair=self._first.pair,
            drafter=self._text("drafter"),
            prompts=self._text("prompts"),
            tokens=int(tokens),
            hours=limit,
            name=self._text("name"),
            start=self._text("start"),
        )

    def _text(self, id: str) -> str:
        return self.query_one(f"#{id}", Input).value.strip()

    def _say(self, runs: ScreenLine) -> None:
        self.query_one("#said", TintedText).set(runs)


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


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
        with self._box:
            yield self._view

    def on_mount(self) -> None:
        self._draw()

    def show(self) -> None:
        if self.is_mounted:
            self._draw()

    def action_stop(self) -> None:
        if not self._training.ended:
            self._answer("stop")

    def action_use(self) -> None:
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
