"""Esc and Ctrl+C: each stops or leaves whatever is nearest, and Ctrl+C twice leaves the app."""

from __future__ import annotations

from specchat.tui.control.actions import Actions
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.control.prompt_controller import PromptController


class StopKeys:
    """Decides what one of the two keys stops."""

    def __init__(self, actions: Actions, context_limit: ContextLimit, prompt_controller: PromptController) -> None:
        self._actions, self._context_limit, self._prompt_controller = actions, context_limit, prompt_controller
        self._chat, self._session, self._ports = actions.chat, actions.session, actions.ports
        self._quit_asked = False
        self._stopping: int | str | None = None

    def typed(self) -> None:
        """Something was typed since: the next Ctrl+C is a first one."""
        self._quit_asked = False

    async def interrupt(self) -> None:
        """Copy what is selected; else stop; else ask once more and quit."""
        screen, prompt = self._ports.screen(), self._actions.views.prompt
        selected = screen.get_selected_text() or prompt.selected_text
        if selected:
            self._ports.copy(selected, "selection")
            screen.clear_selection()
            prompt.move_cursor(prompt.cursor_location)  # … and in the prompt, so that the next one stops, or leaves
        elif self._actions.races.leave():
            self._quit_asked = False
        elif self._running() not in (None, self._stopping) and self._session.stop():
            self._stopping = self._running()
        elif self._quit_asked:
            self._ports.exit()
        else:
            self._quit_asked = True
            self._ports.notify(f"press {self._ports.key_of('interrupt')} again to quit")

    async def stop(self) -> None:
        """Leave a replay; take back the queued message; stop what runs; else go to the prompt and the chat's end."""
        session, views = self._session, self._actions.views
        if session.player is not None:
            await session.leave_replay()
        elif self._chat.editing is not None:
            session.leave_edit()
        elif self._context_limit.problem or self._context_limit.waiting:
            await self._context_limit.answered("back")
        elif not self._prompt_controller.take_back() and not await self._actions.tour.leave() and not session.stop():
            self._ports.notify("")
            self._actions.side_panel.leave_tree()
            views.transcript.follow()
            views.prompt.focus()

    def _running(self) -> int | str | None:
        """What Ctrl+C stops, once: an engine that does not stop must not keep the user from leaving."""
        if self._session.player is not None:
            return None
        if self._chat.engine.phase == "loading":
            return "loading"
        return self._chat.running.id if self._chat.running else None
