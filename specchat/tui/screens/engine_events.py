"""Takes the engine's events: applies them to the state, tells the parts of the screen, then draws once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from specchat.engine.protocol import events
from specchat.engine.protocol.text import visible
from specchat.tui.screens.alternatives import AlternativesScreen
from specchat.tui.screens.chat_view import ChatView
from specchat.tui.screens.context_limit import ContextLimit
from specchat.tui.screens.current_chat import CurrentChat
from specchat.tui.screens.learning import LearningCommand
from specchat.tui.screens.lessons import Lessons
from specchat.tui.screens.race import RunScreen
from specchat.tui.screens.side_panel import SidePanel
from specchat.tui.screens.what_if import WhatIfs, WhatIfScreen
from specchat.tui.services.engine_server import FIRST_RACE_ID
from specchat.tui.state.turn import repeats_itself

REPEATS_EVERY = 24
"""After so many tokens a reply is looked at again for repetitions."""


class EngineEvents:
    """Gives each event to whom it answers: a race, another program, or the chat and what stands around it."""

    def __init__(
        self,
        view: ChatView,
        side_panel: SidePanel,
        context_limit: ContextLimit,
        current_chat: CurrentChat,
        learning: LearningCommand,
        asking: tuple[WhatIfs, Lessons],
    ) -> None:
        self._view, self._chat, self._context, self._app = view, view.chat, view.context, view.context.app
        self._session = view.context.session
        self._side, self._context_limit, self._current_chat = side_panel, context_limit, current_chat
        self._learning, self._asking = learning, asking
        self._looked_at = (0, 0)  # the reply that was last looked at for repetitions, and its tokens then
        self._repeats = 0  # the reply that was said to repeat itself
        self.when_answered: Callable[[], Awaitable[None]] | None = None  # run once the engine has answered all changes

    async def take(self) -> None:
        redraw = self._context.pump.begin()
        arrived = self._session.link.drain() if self._session.link else []
        with self._app.batch_update():
            served, own = self._context.served.dispatch(self._without_those_of_races(arrived))
            own = self._view.animation.release(own)
            if own or redraw or served or self._chat.queued is not None:
                await self._apply_all(own)
            self._context_limit.count_unknown()
            self._context.served.ask_next()
        self._app.call_after_refresh(self._context.pump.end)

    def _without_those_of_races(self, arrived: Sequence[events.Event]) -> list[events.Event]:
        """Give all events to the page above the chat that asked for some; returns those that are no answers to it."""
        asking = RunScreen | AlternativesScreen | WhatIfScreen
        run = next((screen for screen in self._app.screen_stack if isinstance(screen, asking)), None)
        if run is not None:
            run.take(arrived)
        for part in self._asking:
            part.take(arrived)
        return [event for event in arrived if (getattr(event, "id", None) or 0) < FIRST_RACE_ID]

    async def _apply_all(self, arrived: Sequence[events.Event]) -> None:
        for event in arrived:
            await self._apply(event)
        if self._chat.running is None:
            self._context.speed.held = False  # the next one is not
        for view in self._view.transcript.unfinished_replies():
            await view.show_new()
        self._say_if_it_repeats()
        self._context.archive.save()
        self._app.redraw()
        chat = self._chat
        free = chat.can_generate and self._session.player is None and not self._context_limit.waiting
        deleted = self._context.archive.current_is_deleted  # sending would bring it back
        if chat.queued is not None and free and not deleted:
            text, chat.queued = chat.queued, None
            await self._context_limit.ask(text)

    def _say_if_it_repeats(self) -> None:
        """Say once that the reply being written repeats itself, and the key that stops it."""
        reply = self._chat.running
        if reply is None or reply.id == self._repeats or self._session.player is not None:
            return
        tokens = len(reply.lengths)
        if self._looked_at[0] != reply.id or tokens - self._looked_at[1] >= REPEATS_EVERY:
            self._looked_at = reply.id, tokens
            if repeats_itself(reply.text):
                self._repeats = reply.id
                stops = self._app.key_hint("stop", "stops it", " · ")
                self._app.say(f"the reply repeats itself{stops}", "warn")

    async def _apply(self, event: events.Event) -> None:
        chat = self._chat
        if isinstance(event, events.Started) and self._session.player is not None:
            turns = [*chat.replay(event), chat.turns[-1]]
            if len(turns) == len(chat.turns):
                await self._view.transcript.clear()
            for turn in turns:
                await self._view.transcript.show(turn)
        was_writing = chat.running is not None
        change = chat.engine.changes[0] if chat.engine.changes else {}
        chat.apply(event)
        if isinstance(event, events.Changed | events.Failed):
            self._session.send_held()
        if isinstance(event, events.Failed):  # before the reason is shown, which stays
            await self._do_what_waited(event)
        if was_writing or not isinstance(event, events.Finished):  # the end of a reply that was left shows nothing
            await self._show_effects(event, change)
        await self._do_what_waited(event)
        if isinstance(event, events.Counted | events.Failed | events.Died):
            await self._context_limit.apply(event)
        if was_writing and chat.running is None:
            self._context.garbage.schedule()
            await self._context_limit.reply_ended()

    async def _do_what_waited(self, event: events.Event) -> None:
        """Do what waited for the engine's last answer, if this is it."""
        if (waits := self.when_answered) is not None and not self._chat.engine.unanswered:
            self.when_answered = None
            if isinstance(event, events.Ready):  # of another pair, perhaps
                self._app.say("the settings were not saved, because a pair was loaded first: /save again", "warn")
            else:
                await self._app.attempt(waits())

    async def _show_effects(self, event: events.Event, change: dict[str, Any]) -> None:
        match event:
            case events.Hello() | events.Changed():
                self._side.show_fields()
            case events.Died():
                self._side.show_fields()
                self._learning.failed()
                self._app.say("")  # it was about an engine that is gone; the alert says what can be done
            case events.Learnt():
                await self._learning.answered(event)
            case events.Ready():
                await self._on_ready(event)
            case events.Finished():
                self._app.say("the reply reached max_tokens; /continue goes on with it" * (event.stop == "length"))
                self._app.call_user_back(event)
            case events.Notice():
                await self._app.note(visible(event.text), "warn")
            case events.Failed(during="change", missing=missing) if missing and self._context.pairs.here:
                self._side.show_fields()
                doing = visible(self._context.pairs.fetch_drafts(missing, change))
                self._view.form.show_remark(doing)
                self._app.say(doing)
            case events.Failed(during="change"):
                self._side.show_fields()
                self._view.form.fail(next(iter(change.get("method_options", change)), ""), event.message)
                if not self._view.form.has_focus:
                    self._app.say(visible(event.message), "warn")
            case events.Failed(during="load"):
                self._side.show_fields()
                if (engine := self._chat.engine).phase == "ready":
                    why, refused = visible(event.message), engine.refused  # empty where the user cancelled it
                    if refused:
                        await self._app.note(f"{refused} was not loaded: {why}; {engine.pair} stays in use", "bad")
                    self._app.say(why, "bad" if refused else "warn")
            case events.Failed():
                if event.during == "learning":
                    self._learning.failed()
                self._app.say(visible(event.message), "bad")

    async def _on_ready(self, event: events.Ready) -> None:
        self._session.lower_priority_if_shared()
        self._context.settings_files.read()
        self._side.show_fields()
        for note in event.notes:
            await self._app.note(note, "warn")
        if not self._view.start_pages.welcome_shown:
            self._app.say(f"{event.pair} is ready")
        await self._current_chat.offer_pair()
        if self._view.start_pages.chat_is_empty:
            self._app.run_in_background(self._context.pairs.offer_better(event.pair))
        await self._app.attempt(self._context.server.pair_ready())
