"""What becomes of the text in the prompt: completions and hints while it is typed, then a command or a message."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from textual.timer import Timer

from specchat.engine.protocol.commands import Message
from specchat.engine.protocol.events import Counted
from specchat.errors import SpecchatError, UsageError
from specchat.tui.commands.registry import complete_command, find, hint, is_command
from specchat.tui.screens.chat_screen import ChatScreen
from specchat.tui.state import attachments
from specchat.tui.state.prompt_text import Completion, complete_path
from specchat.tui.text.numbers import count

TYPING_PAUSE_S = 0.3
MOST_COUNTED = 200_000
"""Characters; counting longer texts would block the engine for a while."""


class PromptInput:
    def __init__(self, screen: ChatScreen) -> None:
        self._screen, self._chat, self._app = screen, screen.chat, screen.context.app
        self._attachment_size = ("", "")  # a text with something attached, and what is known about its size
        self._count_timer: Timer | None = None

    async def submit(self, text: str) -> None:
        """Run a command, or send a message with the files it mentions; a refused text stays in the prompt.

        A refused command is also selected, so that typing replaces it; what was typed since it was sent does so too.
        """
        self._screen.prompt.take_sent()
        text = text.strip("\n")
        try:
            if (turn := self._chat.editing) is not None and turn.reply is not None:
                await self._screen.replies.ask_in_place_of(turn, text)  # no command, and it attaches no files
                self._screen.prompt.clear()
            elif found := find(text.strip()):
                self._accept(text)
                command, argument = found
                await command.run(self._screen, argument)
            else:
                message = attachments.inline(text[1:] if text.startswith("//") else text, Path.cwd())
                await self._screen.context_limit.ask(message, lambda: self._accept(text))
        except SpecchatError as error:
            self._app.say(str(error), "warn")
            prompt = self._screen.prompt
            if is_command(text):
                prompt.restore_refused(text)
            elif prompt.full_text.strip("\n") != text and prompt.full_text:
                prompt.write(text + "\n" + prompt.full_text)

    def complete(self, line: str) -> Completion | None:
        """The completions of the line up to the cursor; None where there are none."""
        if line.startswith("/") and not line.startswith("//"):
            return complete_command(line, self._screen)
        return complete_path(line, Path.cwd())

    def hint(self) -> str:
        prompt = self._screen.prompt
        if self._screen.command_list.display:
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
        self._screen.status.hint(self.hint())
        if self._count_timer is not None:
            self._count_timer.stop()
            self._count_timer = None
        text = self._screen.prompt.text
        if ("@" in text or "[pasted" in text) and not text.startswith("/") and self._chat.can_generate:
            self._count_timer = self._app.set_timer(TYPING_PAUSE_S, self._count_attachments)
        if now:
            await self._screen.start_pages.leave_tour()
            self._screen.start_pages.hold_tree()
        if now not in ("", self._screen.prompt.written):
            self._app.say("")

    def _count_attachments(self) -> None:
        shown, full = self._screen.prompt.text, self._screen.prompt.full_text
        with suppress(UsageError):
            full = attachments.inline(full, Path.cwd())
        if full == shown or len(full) > MOST_COUNTED or self._screen.context_limit.waiting:
            return

        async def known(event: Counted) -> None:
            holds = f" of {count(event.context_tokens)}" if event.context_tokens else ""
            self._attachment_size = (shown, f"with what is attached: {count(event.tokens)}{holds} tokens")
            self._screen.status.hint(self.hint())

        self._screen.context_limit.count([Message("user", full)], known)

    def _accept(self, text: str) -> None:
        """The text is on its way: it goes into the history, and out of the prompt if it is still there."""
        prompt = self._screen.prompt
        known = prompt.sent.problem
        if prompt.full_text.strip("\n") == text:
            prompt.accept(text)
        else:
            prompt.sent.add(text)
        if prompt.sent.problem != known:
            self._app.say(prompt.sent.problem, "warn")
