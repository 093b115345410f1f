"""The actions of the prompt: send, run a command, complete, search, open an editor, take back a queued message."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from textual.app import SuspendNotSupported
from textual.events import Key
from textual.timer import Timer

from specchat.engine.protocol.commands import Message
from specchat.engine.protocol.events import Counted
from specchat.errors import SpecchatError, UsageError
from specchat.tui.control.actions import Actions
from specchat.tui.control.commands.command import Command
from specchat.tui.control.commands.registry import COMMANDS, find, hint, is_command
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.control.unsent_message import put_back
from specchat.tui.screens.search import SearchScreen
from specchat.tui.state import attachments
from specchat.tui.state.prompt_text import Completion, KnownCommand, complete
from specchat.tui.state.settings_fields import JOINED
from specchat.tui.system import desktop
from specchat.tui.text.numbers import count

TYPING_PAUSE_S = 0.3
MOST_COUNTED = 200_000
"""Characters; counting longer texts would block the engine for a while."""


class PromptController:
    """Handles what is typed in the prompt."""

    def __init__(self, actions: Actions, context_limit: ContextLimit) -> None:
        self._actions, self._context_limit = actions, context_limit
        self._chat, self._views, self._ports = actions.chat, actions.views, actions.ports
        self._attachment_size = ("", "")  # a text with something attached, and what is known about its size
        self._count_timer: Timer | None = None

    async def submit(self, text: str) -> None:
        """Run a command, or send a message with the files it mentions; a refused text stays in the prompt.

        A refused command is also selected, so that typing replaces it.
        """
        text = text.strip("\n")
        try:
            if (turn := self._chat.editing) is not None and turn.reply is not None:
                await self._actions.session.ask_in_place_of(
                    turn, text
                )  # a reply is not a command and attaches no files
                self._views.prompt.clear()
            elif found := find(text.strip()):
                self._accept(text)
                command, argument = found
                await command.run(self._actions, argument)
            else:
                message = attachments.inline(text[1:] if text.startswith("//") else text, Path.cwd())
                await self._context_limit.ask(message, lambda: self._accept(text))
        except SpecchatError as error:
            self._ports.notify(str(error), "warn")
            if is_command(text):
                self._views.prompt.restore_refused(text)

    def typed_elsewhere(self, event: Key) -> None:
        """Write a character into the prompt that was typed in the chat or at a button and is not a key there."""
        prompt, focused, character = self._views.prompt, self._ports.focused(), event.character or ""
        in_chat = focused is not None and focused.has_class("-paces") and self._actions.session.player is None
        at_button = self._views.alert.has_focus_within
        bound = event.key in self._ports.screen().active_bindings
        # A blank is a key in the chat, also where it has no effect.
        typed = character if at_button else character.strip() if in_chat else ""
        if typed and typed.isprintable() and not bound:
            event.stop()
            prompt.focus()
            prompt.insert(character)

    def move_on(self) -> None:
        """Focus the choices where a message waits for one, else what follows the prompt."""
        if self._context_limit.problem and self._views.alert.shown:
            self._views.alert.take_focus()
        else:
            self._ports.screen().focus_next()

    def complete(self, line: str) -> Completion | None:
        """What Tab may put in place of the word before the cursor."""
        return complete(line, [self._known(command) for command in COMMANDS.values()], Path.cwd())

    def _known(self, command: Command) -> KnownCommand:
        return KnownCommand(
            command.name,
            bool(command.usage),
            values=lambda given: command.choices(self._actions, given),
            joins=lambda given: [command.name, *given][-1] in JOINED,
            needs=command.needs,
        )

    def hint(self) -> str:
        """One line about what is being typed."""
        prompt = self._views.prompt
        if self._views.command_list.display:
            return ""
        about, found = hint(prompt.text), prompt.completion
        if not about and self._attachment_size[0] == prompt.text and (found is None or len(found.words) == 1):
            return self._attachment_size[1]
        if found is None or (about and not found.start):
            return about
        names = "  ".join(word.rstrip("/").rpartition("/")[2] + "/" * word.endswith("/") for word in found.words)
        return f"{about}   {names}" if about else names

    async def changed(self, now: str) -> None:
        """The text of the prompt, or of an input over it, has changed. Typing clears the remark."""
        self._update_hint()
        if now:
            await self._actions.tour.leave()
            self._views.start_pages.hold_tree()
        if now not in ("", self._views.prompt.written):
            self._ports.notify("")

    def _update_hint(self) -> None:
        """Show the hint for the text; count the tokens of attachments once typing pauses."""
        self._views.status.hint(self.hint())
        if self._count_timer is not None:
            self._count_timer.stop()
            self._count_timer = None
        text = self._views.prompt.text
        if ("@" in text or "[pasted" in text) and not text.startswith("/") and self._chat.can_generate:
            self._count_timer = self._ports.set_timer(TYPING_PAUSE_S, self._count_attachments)

    def _count_attachments(self) -> None:
        """Request the number of tokens of the message with its files and pastes."""
        shown, full = self._views.prompt.text, self._views.prompt.full_text
        with suppress(UsageError):
            full = attachments.inline(full, Path.cwd())
        if full == shown or len(full) > MOST_COUNTED or self._context_limit.waiting:
            return

        async def known(event: Counted) -> None:
            holds = f" of {count(event.context_tokens)}" if event.context_tokens else ""
            self._attachment_size = (shown, f"with what is attached: {count(event.tokens)}{holds} tokens")
            self._views.status.hint(self.hint())

        self._context_limit.count([Message("user", full)], known)

    def search(self) -> None:
        """Look for something that was sent before, and put it into the prompt."""
        if self._refused_by_recording():
            return
        prompt = self._views.prompt

        def chosen(text: str | None) -> None:
            if text is not None:
                prompt.write(text)
            prompt.focus()

        self._ports.push_screen(SearchScreen(prompt.sent), chosen)

    def open_editor(self) -> None:
        """Edit the prompt in the user's editor; the app waits."""
        if self._refused_by_recording():
            return
        prompt = self._views.prompt
        try:
            command = desktop.editor_command()
            with self._ports.suspend():
                text = desktop.edit_text(prompt.full_text, command)
        except SuspendNotSupported:
            self._ports.notify("the app cannot make room for an editor here", "warn")
        except SpecchatError as error:
            self._ports.notify(str(error), "warn")
        else:
            prompt.write(text)
            self._ports.notify("")
        self._ports.repaint_all()
        prompt.focus()

    def recall_queued(self) -> bool:
        """Move the queued message back into an empty prompt; False if there is none."""
        chat, prompt = self._chat, self._views.prompt
        if chat.queued is None or prompt.text:
            return False
        text, chat.queued = chat.queued, None
        put_back(text, prompt, self._ports)
        self._views.queued_message.update()
        return True

    def _refused_by_recording(self) -> bool:
        """Whether a recording hides the prompt, which must not change unseen; a remark says so."""
        if self._chat.background.replaying:
            self._ports.notify(self._ports.recording_reason, "warn")
        return self._chat.background.replaying

    def _accept(self, text: str) -> None:
        """The text is on its way: it goes into the history, and out of the prompt if it is still there."""
        prompt = self._views.prompt
        known = prompt.sent.problem
        if prompt.full_text.strip("\n") == text:
            prompt.accept(text)
        else:
            prompt.sent.add(text)
        if prompt.sent.problem != known:
            self._ports.notify(prompt.sent.problem, "warn")
