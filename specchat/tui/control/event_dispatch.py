"""What each event of the engine causes: everything one tick brought is applied first and drawn once."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.events import (
    Changed,
    Counted,
    Died,
    Event,
    Failed,
    Finished,
    Hello,
    Notice,
    Ready,
    Started,
)
from specchat.engine.protocol.text import visible
from specchat.tui.control.actions import Actions
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.services.garbage_collection import GarbageCollection
from specchat.tui.services.terminal_window import TerminalWindow


class EventDispatch:
    """Hands the engine's events to the chat's state and to the parts that act on them."""

    def __init__(
        self, actions: Actions, context_limit: ContextLimit, terminal: TerminalWindow, garbage: GarbageCollection
    ) -> None:
        self._actions, self._context_limit = actions, context_limit
        self._terminal, self._garbage = terminal, garbage
        self._chat, self._session, self._ports = actions.chat, actions.session, actions.ports
        self._transcript, self._side = actions.views.transcript, actions.side_panel

    async def apply(self, events: Sequence[Event], owed: bool = False) -> None:
        """Apply events in order, then draw the state they led to; `owed`: the last tick left something undrawn."""
        if not events and not owed:
            return
        for event in events:
            await self._apply(event)
        if self._chat.running is None:
            self._actions.speed.ended()
        for view in self._transcript.growing():
            await view.grow()
        self._actions.archive.keep()
        self._ports.redraw()
        await self._send_queued()

    async def answered(self, choice: str) -> None:
        """Do what the user chose in an alert."""
        match choice:
            case "retry" | "restart":
                await self._session.reconnect()
            case "pairs":
                self._actions.choose_pair()
            case "demo":
                await self._session.watch_demo()
            case _:
                await self._context_limit.answered(choice)

    async def _apply(self, event: Event) -> None:
        chat = self._chat
        if isinstance(event, Started) and self._session.player is not None:
            await self._replayed(event)
        was_writing = chat.running is not None
        change = chat.engine.changes[0] if chat.engine.changes else {}
        chat.apply(event)
        await self._react(event, change)
        if isinstance(event, Counted | Failed | Died):
            await self._context_limit.apply(event)
        if was_writing and chat.running is None:
            self._garbage.soon()
            await self._context_limit.ended()

    async def _send_queued(self) -> None:
        """Send the message that waited for the reply before it."""
        chat = self._chat
        free = chat.can_generate and self._session.player is None and not self._context_limit.waiting
        if chat.queued is not None and free:
            text, chat.queued = chat.queued, None
            await self._context_limit.ask(text)

    async def _react(self, event: Event, change: dict[str, object]) -> None:
        """Fill the settings form and show a remark, where the event asks for it."""
        match event:
            case Hello() | Changed() | Died():
                self._side.show_fields()
            case Ready():
                await self._ready(event)
            case Finished():
                self._ports.notify("")
                self._terminal.ended(event)
            case Notice():
                await self._transcript.note(visible(event.text), "warn")
            case Failed(during="change"):
                self._side.show_fields()
                self._side.form.fail(_name_of(change), event.message)
                if not self._side.form.has_focus:
                    self._ports.notify(visible(event.message), "warn")
            case Failed(during="load"):
                self._side.show_fields()
                if self._chat.engine.phase == "ready":
                    await self._not_loaded(visible(event.message))
            case Failed():
                self._ports.notify(visible(event.message), "bad")
            case _:
                pass

    async def _ready(self, event: Ready) -> None:
        self._session.share_cores()
        self._actions.settings_files.read()
        self._side.show_fields()
        for note in event.notes:
            await self._transcript.note(note, "warn")
        if self._transcript.welcome is None:
            self._ports.notify(f"{event.pair} is ready")

    async def _not_loaded(self, why: str) -> None:
        """A pair could not be loaded: noted in the chat, unless the user cancelled it."""
        chat = self._chat
        if chat.engine.refused:
            await self._transcript.note(
                f"{chat.engine.refused} was not loaded: {why}; {chat.engine.pair} stays in use", "bad"
            )
        self._ports.notify(why, "bad" if chat.engine.refused else "warn")

    async def _replayed(self, event: Started) -> None:
        """Show the messages a recorded reply answers, and an empty reply."""
        turns = self._chat.replay(event)
        if len(turns) + 1 == len(self._chat.turns):
            await self._transcript.clear()
        for turn in [*turns, self._chat.turns[-1]]:
            await self._transcript.show(turn)


def _name_of(change: dict[str, object]) -> str:
    """The setting a change was about: `width`, or `METHOD.OPTION`."""
    options = change.get("method_options")
    names = list(options) if isinstance(options, dict) else list(change)
    return str(names[0]) if names else ""
