"""What the app does with the prompt: send, run, complete, search, edit elsewhere, take back what waits."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported
from textual.timer import Timer

from specchat.engine.protocol.events import Counted, Message
from specchat.errors import SpecchatError, UsageError
from specchat.tui.control.commands import COMMANDS, find, hint, is_command
from specchat.tui.screens.search import SearchScreen
from specchat.tui.state import attachments
from specchat.tui.state.completion import Completion, Known, complete
from specchat.tui.system import editor
from specchat.tui.text.numbers import count

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp


PAUSE_S = 0.3
MOST_WEIGHED = 200_000
"""Characters; counting more would keep the engine from answering for a while."""


class PromptController:
    """Everything between the keys of the prompt and the talk with the engine."""

    def __init__(self, app: SpecchatApp) -> None:
        self._app = app
        self._size = ("", "")  # a text with something attached, and what is known about its size
        self._weigh_soon: Timer | None = None

    async def submit(self, text: str) -> None:
        """Run a command, or say it to the model with the files it mentions; what is refused stays in the prompt.

        A command that is refused is selected as well: what is typed next takes its place.
        """
        app, text = self._app, text.strip("\n")
        try:
            if found := find(text.strip()):
                self._taken(text)
                command, argument = found
                await command.run(app, argument)
            elif await app.context_limit.ask(
                attachments.inline(text[1:] if text.startswith("//") else text, Path.cwd())
            ):
                self._taken(text)
        except SpecchatError as error:
            app.say(str(error), "warn")
            if is_command(text):
                app.prompt.give_back(text)

    def complete(self, line: str) -> Completion | None:
        """What Tab may put in place of the word before the cursor."""
        known = [
            Known(command.name, bool(command.usage), lambda given, c=command: c.choices(self._app, given))  # type: ignore[misc]
            for command in COMMANDS.values()
        ]
        return complete(line, known, Path.cwd())

    def hint(self) -> str:
        """One line about what is being typed."""
        prompt = self._app.prompt
        about, found = hint(prompt.text), prompt.completion
        if not about and self._size[0] == prompt.text and (found is None or len(found.words) == 1):
            return self._size[1]
        if found is None or (about and not found.start):
            return about
        names = "  ".join(word.rstrip("/").rpartition("/")[2] + "/" * word.endswith("/") for word in found.words)
        return f"{about}   {names}" if about else names

    def changed(self) -> None:
        """Explain what is being typed; where something is attached, have it counted once typing pauses."""
        self._app.status.hint(self.hint())
        if self._weigh_soon is not None:
            self._weigh_soon.stop()
            self._weigh_soon = None
        text = self._app.prompt.text
        if ("@" in text or "[pasted" in text) and not text.startswith("/") and self._app.chat.can_generate:
            self._weigh_soon = self._app.set_timer(PAUSE_S, self._weigh)

    def _weigh(self) -> None:
        """Ask how many tokens the message takes with its files and pastes."""
        shown, full = self._app.prompt.text, self._app.prompt.full_text
        with suppress(UsageError):
            full = attachments.inline(full, Path.cwd())
        if full == shown or len(full) > MOST_WEIGHED:
            return

        async def known(event: Counted) -> None:
            holds = f" of {count(event.context_tokens)}" if event.context_tokens else ""
            self._size = (shown, f"with what is attached: {count(event.tokens)}{holds} tokens")
            self._app.status.hint(self.hint())

        self._app.context_limit.count([Message("user", full)], known)

    def search(self) -> None:
        """Look for something that was sent before, and put it into the prompt."""
        prompt = self._app.prompt

        def chosen(text: str | None) -> None:
            if text is not None:
                prompt.write(text)
            prompt.focus()

        words = prompt.text if prompt.text.strip() and "\n" not in prompt.text else ""
        self._app.push_screen(SearchScreen(prompt.sent, words), chosen)

    def edit_elsewhere(self) -> None:
        """Edit the prompt in the user's editor; the app waits."""
        app = self._app
        try:
            command = editor.editor_command()
            with app.suspend():
                text = editor.edited(app.prompt.full_text, command)
        except SuspendNotSupported:
            app.say("the app cannot make room for an editor here", "warn")
        except SpecchatError as error:
            app.say(str(error), "warn")
        else:
            app.prompt.write(text)
            app.say("")
        app.refresh(layout=True)
        app.prompt.focus()

    def take_back(self) -> bool:
        """The message that waits comes back into an empty prompt; False if none does."""
        app = self._app
        if app.chat.queued is None or app.prompt.text:
            return False
        text, app.chat.queued = app.chat.queued, None
        app.prompt.write(attachments.split(text)[0])
        app.queued_message.look()
        return True

    def _taken(self, text: str) -> None:
        prompt = self._app.prompt
        known = prompt.sent.problem
        prompt.taken(text)
        if prompt.sent.problem != known:
            self._app.say(prompt.sent.problem, "warn")
