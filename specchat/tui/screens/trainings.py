"""What `/train` does, and its screens: what is to be trained, how far it is, what came of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from specchat.config import own_drafters_dir
from specchat.config.trained_drafters import free_name
from specchat.engine.protocol.text import visible
from specchat.errors import SpecchatError, UsageError
from specchat.training.limits import CHATS
from specchat.tui.screens.chat_view import ChatView
from specchat.tui.screens.page import FormPage, Page
from specchat.tui.services.training_runner import Estimate, TrainingRunner
from specchat.tui.state.engine_state import changes_of
from specchat.tui.state.training import Training, TrainingChoices, estimate_text, training_lines
from specchat.tui.text.key_names import bind, hint
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


class TrainForm(FormPage[TrainingChoices | None]):
    """Six inputs; its result is what is to be trained."""

    DEFAULT_CSS = """
    TrainForm > Vertical { width: 76; max-width: 100%; max-height: 100%; overflow-y: auto; }
    TrainForm Horizontal { height: 1; }
    TrainForm Horizontal TintedText { width: 11; }
    TrainForm Horizontal .-what { width: 1fr; padding: 0 0 0 1; height: 1; }
    TrainForm Input { width: 28; }
    TrainForm #said { height: auto; max-height: 5; margin: 1 0 0 0; }
    TrainForm.-w0 .-what { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "dismiss(None)", "close", "train_form.close"),
        bind("down", "app.focus_next", "the next line", "train_form.next"),
        bind("up", "app.focus_previous", "the line above", "train_form.previous"),
    ]

    def __init__(self, suggested: Callable[[str], TrainingChoices], estimate: Estimate) -> None:
        super().__init__()
        self._suggested, self._estimate = suggested, estimate
        self._first = suggested("hydra")

    def compose(self) -> ComposeResult:
        closes = hint(self, "train_form.close", "closes", " · ")
        self.entitle(f"train a drafter for {self._first.pair}", f"Enter begins{closes}")
        with self.box:
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
                self._first = self._suggested(self.text_of("drafter") or self._first.drafter)
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
            self.tell([(f"✕ {error}", "bad")])
            return None
        words = estimate_text(cost.disk_bytes, cost.seconds, cost.free_bytes)
        self.tell([*words, *([("\n" + _CHATS_ARE_READ, "warn")] if request.prompts == CHATS else [])])
        return request

    def _request(self) -> TrainingChoices:
        tokens, hours = self.text_of("tokens").replace(",", "").replace("_", ""), self.text_of("hours")
        if not (tokens.isascii() and tokens.isdecimal() and len(tokens) < 12):
            raise UsageError(f"tokens: {tokens or 'nothing'} is not a whole number")
        try:
            limit = float(hours or "0")
        except ValueError:
            raise UsageError(f"hours: {hours} is not a number") from None
        words = {id: self.text_of(id) for id in ("drafter", "prompts", "name", "start")}
        return TrainingChoices(pair=self._first.pair, tokens=int(tokens), hours=limit, **words)


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


TrainingAction = Literal["stop", "use"]
"""Stop the training, or use what was trained from now on."""


class TrainingScreen(Page[None]):
    """Draws the training; leaving it changes nothing, and the training goes on."""

    DEFAULT_CSS = """
    TrainingScreen > Vertical { width: 84; max-width: 100%; height: 26; max-height: 100%; }
    TrainingScreen LinesView { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape,q", "dismiss(None)", "close; the training goes on", "training.close"),
        bind("s", "stop", "stop the training and keep the best", "training.stop"),
        bind("u", "use", "use what was trained from now on", "training.use"),
    ]

    def __init__(self, training: Training, answer: Callable[[TrainingAction], object]) -> None:
        """The screen; `answer` is called with what the user wants to happen."""
        self._training, self._answer = training, answer
        self._view = LinesView(lambda width, height: training_lines(training, width, height))
        super().__init__(self._view)

    def on_mount(self) -> None:
        self.redraw()

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

    def redraw(self) -> None:
        if not self.is_mounted:
            return
        request = self._training.request
        close = hint(self, "training.close", "closes" if self._training.ended else "closes, the training goes on")
        own = hint(self, "training.use", "uses it from now on", " · ") if self._can_be_used else ""
        own = own if self._training.ended else hint(self, "training.stop", "stops it", " · ")
        self.entitle(visible(f"{request.name}: {request.drafter} for {request.pair}"), close + own)
        self._view.repaint()


_TOKENS = 400_000


class Trainings:
    """The training in the background, and its screens."""

    def __init__(self, view: ChatView) -> None:
        self._view, self._chat, self._app = view, view.chat, view.context.app
        self._here = view.context.setup.training
        self.runner = TrainingRunner(self._app, self._here.unfinished if self._here else None, self._on_end)
        self._screen: TrainingScreen | None = None

    async def train(self, argument: str) -> None:
        """Do what `/train`, `/train stop` or `/train resume` asks for.

        Raises:
            UsageError: it cannot be done now, or the argument is unknown.
        """
        match argument:
            case "":
                self._show_or_ask()
            case "stop":
                self.runner.stop()
                self._app.say("the training stops and keeps the best; /train resume goes on with it")
            case "resume":
                self._estimate_here()
                request = self.runner.unfinished()
                if request is None:
                    raise UsageError("no training is unfinished; /train begins one")
                await self._begin(request, resume=True)
            case _:
                raise UsageError(f"/train does not know {argument!r}; /train, /train stop or /train resume")

    def update(self) -> None:
        """Let the training rest while the engine is busy, and draw how far it is."""
        chat = self._chat
        self.runner.pause(chat.writing or chat.background.racing or chat.engine.phase in ("starting", "loading"))
        if self._screen is not None:
            self._screen.redraw()

    async def use(self) -> None:
        """Use what was trained from now on; the pair in use is loaded again with it.

        Raises:
            ConfigError: models.toml cannot be changed.
        """
        training = self._chat.background.training
        if training is None or training.judged is None or training.used:
            return
        self._app.say(f"from now on: {self.runner.use()}", "good")
        self.update()
        if training.request.pair == self._chat.engine.pair:
            options = self._chat.engine.wanted.get("method_options", {})
            await self._view.context.session.load(changes_of({**options, **training.judged.settings}))

    def _show_or_ask(self) -> None:
        if self._chat.background.training is not None:
            self._show()
            return
        estimate = self._estimate_here()
        if not self._chat.engine.pair:
            raise UsageError("no pair is ready; a drafter can be trained for one once it is loaded")
        unfinished = self.runner.unfinished()

        async def chosen(request: TrainingChoices | None) -> None:
            self._view.prompt.focus()
            if request is not None:
                await self._app.attempt(self._begin(request, resume=False))

        self._app.push_screen(TrainForm(self._suggested, estimate), chosen)
        if unfinished is not None:
            self._app.say(f"{unfinished.name} is not finished; /train resume goes on with it")

    async def _begin(self, request: TrainingChoices, *, resume: bool) -> None:
        self.runner.start(request, resume=resume)
        self._app.say(f"training {request.name}; the chat goes on meanwhile, /train shows how far it is")

    def _estimate_here(self) -> Estimate:
        if self._here is None:
            raise UsageError("no drafter can be trained here: use `specchat train` where the engine runs")
        return self._here.estimate

    def _suggested(self, drafter: str) -> TrainingChoices:
        """The defaults, under a name that is not taken."""
        pair, unfinished = self._chat.engine.pair, self.runner.unfinished()
        begun = unfinished.name if unfinished else ""
        name = free_name(f"{pair}-{drafter}", lambda name: name == begun or (own_drafters_dir() / name).exists())
        return TrainingChoices(pair, drafter, "self", _TOKENS, 0.0, name)

    def _show(self) -> None:
        assert self._chat.background.training is not None, "there is something to show"
        self._screen = TrainingScreen(self._chat.background.training, partial(self._app.call_later, self._answer))
        self._app.push_screen(self._screen, self._left)

    async def _answer(self, what: TrainingAction) -> None:
        await self._app.attempt(self.train("stop") if what == "stop" else self.use())

    def _left(self, _: None) -> None:
        self._screen = None
        self.runner.forget()
        self._view.prompt.focus()

    def _on_end(self) -> None:
        """Show the verdict, unless that would disturb; then the status line says that there is one."""
        training = self._chat.background.training
        assert training is not None, "it has just ended"
        name = training.request.name
        if training.phase == "failed":
            self._app.say(f"{name} was not trained: {training.problem}", "bad")
        elif training.phase == "done":
            at_rest = self._app.screen is self._view and not self._chat.writing and not self._view.prompt.text
            if self._screen is None and at_rest:
                self._show()
            else:
                self._app.say(f"{name} is trained; /train shows what it is worth", "good")
