"""What Esc and Ctrl+C do: stop a run or close what is open; Ctrl+C twice quits."""

from __future__ import annotations

from specchat.tui.control.actions import Actions
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.control.prompt_controller import PromptController


class StopKeys:
    """Decides what Esc or Ctrl+C stops."""

    def __init__(self, actions: Actions, context_limit: ContextLimit, prompt_controller: PromptController) -> None:
        self._actions, self._context_limit, self._prompt_controller = actions, context_limit, prompt_controller
        self._chat, self._session, self._ports = actions.chat, actions.session, actions.ports
        self._quit_asked = False
        self._stopping: int | str | None = None

    def reset_quit(self) -> None:
        """The user typed something: the next Ctrl+C asks again before it quits."""
        self._quit_asked = False

    async def interrupt(self) -> None:
        """Copy what is selected; else stop; else ask once more and quit."""
        screen, prompt = self._ports.screen(), self._actions.views.prompt
        selected = screen.get_selected_text() or prompt.selected_text
        if selected:
            self._ports.copy(selected, "selection")
            screen.clear_selection()
            prompt.clear_selection()  # also in the prompt: the next Ctrl+C stops or quits
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
        """Leave a replay, take back the queued message, or stop what runs; else focus the prompt and the chat's end."""
        session, views = self._session, self._actions.views
        if views.prompt.close_menu():
            return
        if session.player is not None:
            await self._actions.demo.leave()
            self._actions.side_panel.show_fields()
        elif self._chat.editing is not None:
            self._actions.branches.leave_edit()
        elif self._context_limit.problem or self._context_limit.waiting:
            await self._context_limit.answered("back")
        elif (
            not self._prompt_controller.recall_queued() and not await self._actions.tour.leave() and not session.stop()
        ):
            self._ports.notify("")
            self._actions.show.leave()
            self._actions.side_panel.leave_tree()
            self._actions.side_panel.look_at(None)
            views.transcript.follow()
            views.prompt.focus()

    def _running(self) -> int | str | None:
        """What Ctrl+C stops. It tries once: the second Ctrl+C quits even if the engine does not stop."""
        if self._session.player is not None:
            return None
        if self._chat.engine.phase == "loading":
            return "loading"
        return self._chat.running.id if self._chat.running else None
