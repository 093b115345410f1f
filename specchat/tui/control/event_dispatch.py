"""Applies the engine's events to the state and the parts of the app, then draws once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specchat.engine.protocol.events import (
    Changed,
    Counted,
    Died,
    Event,
    Failed,
    Finished,
    Hello,
    Learnt,
    Notice,
    Ready,
    Started,
)
from specchat.engine.protocol.text import visible
from specchat.tui.control.actions import Actions
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.control.context_use import ContextUse
from specchat.tui.services.garbage_collection import GarbageCollection
from specchat.tui.services.terminal_window import TerminalWindow


class EventDispatch:
    """Gives each event of a tick to the chat's state and to the controllers that act on it."""

    def __init__(
        self,
        actions: Actions,
        context_limit: ContextLimit,
        context_use: ContextUse,
        terminal: TerminalWindow,
        garbage: GarbageCollection,
    ) -> None:
        self._actions, self._context_limit, self._context_use = actions, context_limit, context_use
        self._terminal, self._garbage = terminal, garbage
        self._chat, self._session, self._ports = actions.chat, actions.session, actions.ports
        self._transcript, self._side = actions.views.transcript, actions.side_panel

    async def apply(self, events: Sequence[Event], redraw: bool = False) -> None:
        """Apply the events in order, then draw once; `redraw`: draw even without events."""
        if events or redraw or self._chat.queued is not None:
            await self._apply_all(events)
        self._context_use.update()

    async def answered(self, choice: str) -> None:
        """Do what the button of an alert says."""
        match choice:
            case "retry" | "restart":
                await self._session.reconnect()
            case "pairs":
                self._actions.choose_pair()
            case "demo":
                await self._actions.demo.watch()
            case _:
                await self._context_limit.answered(choice)

    async def _apply_all(self, events: Sequence[Event]) -> None:
        for event in events:
            await self._apply(event)
        if self._chat.running is None:
            self._actions.speed.reply_ended()
        for view in self._transcript.unfinished_replies():
            await view.show_new()
        self._actions.archive.save()
        self._ports.redraw()
        await self._send_queued()

    async def _apply(self, event: Event) -> None:
        chat = self._chat
        if isinstance(event, Started) and self._session.player is not None:
            await self._show_replayed(event)
        was_writing = chat.running is not None
        change = chat.engine.changes[0] if chat.engine.changes else {}
        chat.apply(event)
        if was_writing or not isinstance(event, Finished):  # the end of a reply that was left shows nothing
            await self._show_effects(event, change)
        if isinstance(event, Counted | Failed | Died):
            await self._context_limit.apply(event)
        if was_writing and chat.running is None:
            self._garbage.schedule()
            await self._context_limit.reply_ended()

    async def _send_queued(self) -> None:
        """Send the message that waited for the reply before it."""
        chat = self._chat
        free = chat.can_generate and self._session.player is None and not self._context_limit.waiting
        deleted = self._actions.archive.current_is_deleted  # sending would bring it back
        if chat.queued is not None and free and not deleted:
            text, chat.queued = chat.queued, None
            await self._context_limit.ask(text)

    async def _show_effects(self, event: Event, change: dict[str, Any]) -> None:
        """Update the settings form and the remark for this event."""
        match event:
            case Hello() | Changed():
                self._side.show_fields()
            case Died():
                self._side.show_fields()
                self._actions.learning.failed()
                self._ports.notify("")  # it was about an engine that is gone; the alert says what can be done
            case Learnt():
                await self._actions.learning.answered(event)
            case Ready():
                await self._on_ready(event)
            case Finished():
                cut = event.stop == "length"
                self._ports.notify("the reply reached max_tokens; /continue goes on with it" if cut else "")
                self._terminal.reply_ended(event)
            case Notice():
                await self._transcript.add_note(visible(event.text), "warn")
            case Failed(during="change", missing=missing) if missing and self._actions.pairs.here:
                self._side.show_fields()
                doing = visible(self._actions.pairs.fetch_drafts(missing, change))
                self._side.form.show_remark(doing)
                self._ports.notify(doing)
            case Failed(during="change"):
                self._side.show_fields()
                self._side.form.fail(_setting_name(change), event.message)
                if not self._side.form.has_focus:
                    self._ports.notify(visible(event.message), "warn")
            case Failed(during="load"):
                self._side.show_fields()
                if self._chat.engine.phase == "ready":
                    await self._note_load_failure(visible(event.message))
            case Failed():
                if event.during == "learning":
                    self._actions.learning.failed()
                self._ports.notify(visible(event.message), "bad")
            case _:
                pass

    async def _on_ready(self, event: Ready) -> None:
        self._session.lower_priority_if_shared()
        self._actions.settings_files.read()
        self._side.show_fields()
        for note in event.notes:
            await self._transcript.add_note(note, "warn")
        if not self._actions.views.start_pages.welcome_shown:
            self._ports.notify(f"{event.pair} is ready")
        await self._actions.current_chat.offer_pair()
        await self._ports.attempt(self._serve_from_the_start())

    async def _serve_from_the_start(self) -> None:
        if told := self._actions.server.pair_ready():
            await self._transcript.add_note(told)

    async def _note_load_failure(self, why: str) -> None:
        """A pair could not be loaded: noted in the chat, unless the user cancelled it."""
        chat = self._chat
        if chat.engine.refused:
            await self._transcript.add_note(
                f"{chat.engine.refused} was not loaded: {why}; {chat.engine.pair} stays in use", "bad"
            )
        self._ports.notify(why, "bad" if chat.engine.refused else "warn")

    async def _show_replayed(self, event: Started) -> None:
        """Show the messages a recorded reply answers, and an empty reply."""
        turns = self._chat.replay(event)
        if len(turns) + 1 == len(self._chat.turns):
            await self._transcript.clear()
        for turn in [*turns, self._chat.turns[-1]]:
            await self._transcript.show(turn)


def _setting_name(change: dict[str, object]) -> str:
    """The setting a change was about: `width`, or `METHOD.OPTION`."""
    options = change.get("method_options")
    names = list(options) if isinstance(options, dict) else list(change)
    return str(names[0]) if names else ""
