"""What `/train` does: asks what to train, shows how far it is, offers what came of it."""

from __future__ import annotations

from specchat.config import own_drafters_dir
from specchat.config.trained_drafters import suggested_name
from specchat.errors import UsageError
from specchat.tui.screens.chat_view import ChatView
from specchat.tui.screens.training import Answer, TrainForm, TrainingScreen
from specchat.tui.services.training_runner import Estimate, TrainingRunner
from specchat.tui.state.training import TrainingChoices

_TOKENS = 400_000


class Trainings:
    """The training in the background, and its screens."""

    def __init__(self, view: ChatView) -> None:
        self._view, self._chat, self._app = view, view.chat, view.context.app
        self._here = view.context.setup.training
        self.runner = TrainingRunner(
            self._chat,
            self._here.unfinished if self._here else None,
            redraw=self._app.redraw,
            run=self._app.run_in_background,
            ended=self._on_end,
        )
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
            self._screen.show()

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
            options = dict(self._chat.engine.wanted.get("method_options", {}))
            options |= {name: value for name, value in training.judged.settings.items() if "." in name}
            plain = {name: value for name, value in training.judged.settings.items() if "." not in name}
            await self._view.context.session.load({**plain, "method_options": options})

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
        name = suggested_name(pair, drafter, lambda name: name == begun or (own_drafters_dir() / name).exists())
        return TrainingChoices(pair, drafter, "self", _TOKENS, 0.0, name)

    def _show(self) -> None:
        assert self._chat.background.training is not None, "there is something to show"
        self._screen = TrainingScreen(
            self._chat.background.training, lambda what: self._app.call_later(self._answer, what)
        )
        self._app.push_screen(self._screen, self._left)

    async def _answer(self, what: Answer) -> None:
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
        elif self._screen is None and training.phase == "done" and self._undisturbed:
            self._show()
        elif training.phase == "done":
            self._app.say(f"{name} is trained; /train shows what it is worth", "good")

    @property
    def _undisturbed(self) -> bool:
        at_rest = self._app.screen is self._view and not self._chat.writing
        return at_rest and not self._view.prompt.text
