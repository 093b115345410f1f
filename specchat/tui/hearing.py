"""From events to the screen: everything one tick brought is applied first and drawn once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specchat.engine.events import Changed, Died, Event, Failed, Finished, Hello, Ready, Started
from specchat.engine.text import visible
from specchat.tui.stats_rows import Facts
from specchat.tui.widgets.reply_view import ReplyView
from specchat.tui.widgets.welcome import Welcome

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp


async def hear(app: SpecchatApp, events: Sequence[Event]) -> None:
    """Apply events in order, then show the state they led to."""
    if not events:
        return
    for event in events:
        if isinstance(event, Started) and app.talk.player is not None:
            await _replayed(app, event)
        change = app.chat.changes[0] if app.chat.changes else {}
        app.chat.apply(event)
        await _remark(app, event, change)
    for view in app.transcript.query(ReplyView):
        if view.growing:
            await view.grow()
    look(app)
    if app.chat.queued is not None and app.chat.can_generate and app.talk.player is None:
        text, app.chat.queued = app.chat.queued, None
        await app.talk.ask(text)


def look(app: SpecchatApp) -> None:
    """Draw what is known: tree, figures, state. Each widget is told at most once per tick."""
    chat = app.chat
    app.tree_panel.show(chat.rounds, chat.figures)
    app.tree_strip.show(chat.rounds[-1] if chat.rounds else None, chat.figures)
    app.stats.show(_facts(app))
    app.status.repaint()
    app.notice.look(welcomed=bool(app.transcript.query(Welcome)))
    if app.talk.player is not None:
        app.replay_bar.repaint()
    for welcome in app.transcript.query(Welcome):
        welcome.repaint()
    _alert(app)


def _facts(app: SpecchatApp) -> Facts:
    chat = app.chat
    return Facts(
        figures=chat.figures,
        loss=chat.loss,
        context_tokens=chat.context_tokens,
        context_limit=chat.ready.context_tokens if chat.ready else 0,
        memory_bytes=chat.ready.memory_bytes if chat.ready else 0,
        writing=chat.running is not None,
    )


def _alert(app: SpecchatApp) -> None:
    chat = app.chat
    demo = {"demo"} if app.talk.has_demo else set()
    match chat.phase:
        case "dead":
            app.alert.show(chat.problem, {"restart", "pairs", *demo})
        case "failed":
            app.alert.show(chat.problem, {"retry", "pairs", *demo})
        case _:
            if app.alert.display:
                app.alert.show("", set())


async def _remark(app: SpecchatApp, event: Event, change: dict[str, object]) -> None:
    """What an event means beyond the state: forms to fill, words to say."""
    match event:
        case Hello():
            app.form.show(app.fields())
        case Ready():
            app.form.show(app.fields())
            for note in event.notes:
                await app.transcript.note(note, "warn")
            if not app.transcript.query(Welcome):
                app.say(f"{event.pair} is ready")
        case Changed():
            app.form.show(app.fields())
        case Finished():
            app.say("")
        case Died():
            app.form.show(app.fields())
        case Failed(during="change"):
            name = _name_of(change)
            app.form.show(app.fields())
            app.form.fail(name, event.message)
            if not app.form.has_focus:
                app.say(visible(event.message), "warn")
        case Failed(during="load") if app.chat.phase == "ready":
            app.form.show(app.fields())
            app.say(visible(event.message), "warn")
        case Failed(during="load"):
            app.form.show(app.fields())
        case Failed():
            app.say(visible(event.message), "bad")
        case _:
            pass


def _name_of(change: dict[str, object]) -> str:
    """The setting a change was about: `width`, or `METHOD.OPTION`."""
    options = change.get("method_options")
    names = list(options) if isinstance(options, dict) else list(change)
    return str(names[0]) if names else ""


async def _replayed(app: SpecchatApp, event: Started) -> None:
    """Show the messages a recorded reply answers, and make room for the reply."""
    turns = app.chat.replay(event)
    if len(turns) + 1 == len(app.chat.turns):
        await app.transcript.clear()
    for turn in [*turns, app.chat.turns[-1]]:
        await app.transcript.show(turn)
