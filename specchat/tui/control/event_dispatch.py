"""From events to the screen: everything one tick brought is applied first and drawn once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specchat.engine.protocol.events import Changed, Counted, Died, Event, Failed, Finished, Hello, Ready, Started
from specchat.engine.protocol.text import visible
from specchat.tui.draw.stats_rows import Facts, plan_of

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp


TREE_S, FIGURES_S = 1 / 8, 1 / 3
"""While a reply is written, trees and figures need not change faster than one can read them."""


async def hear(app: SpecchatApp, events: Sequence[Event], owed: bool = False) -> None:
    """Apply events in order, then show the state they led to; `owed`: something of it was not drawn last time."""
    if not events and not owed:
        return
    for event in events:
        if isinstance(event, Started) and app.session.player is not None:
            await _replayed(app, event)
        was_writing = app.chat.running is not None
        change = app.chat.changes[0] if app.chat.changes else {}
        app.chat.apply(event)
        await _remark(app, event, change)
        if isinstance(event, Counted | Failed | Died):
            await app.context_limit.hear(event)
        if was_writing and app.chat.running is None:
            app.garbage.soon()
            await app.context_limit.ended()
    if app.chat.running is None:
        app.speed.ended()
    for view in app.transcript.growing():
        await view.grow()
    app.archive.keep()
    look(app)
    if (
        app.chat.queued is not None
        and app.chat.can_generate
        and app.session.player is None
        and not app.context_limit.waiting
    ):
        text, app.chat.queued = app.chat.queued, None
        await app.context_limit.ask(text)


def look(app: SpecchatApp) -> None:
    """Draw what is known: tree, figures, state. Each widget is told at most once per tick."""
    chat = app.chat
    writing = chat.running is not None
    if not writing or app.pump.due("tree", TREE_S):
        app.tree_panel.show(
            chat.rounds,
            chat.figures,
            frozen=app.speed.still,
            telling=not app.round_animation.told,
            pace=app.speed.words,
        )
        app.tree_strip.show(chat.rounds[-1] if chat.rounds else None, chat.figures, app.speed.words)
    app.round_animation.again()
    if not writing or app.pump.due("figures", FIGURES_S):
        app.stats.show(_facts(app))
        app.form.show_effect(chat.effect)
        app.status.repaint()
    app.terminal.look()
    app.queued_message.look()
    app.prompt.waiting = chat.queued or ""
    welcome = app.transcript.welcome
    app.notice.look(welcomed=welcome is not None)
    if app.session.player is not None:
        app.replay_bar.repaint()
    if welcome is not None:
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
        effect=chat.effect,
        shares=app.cpu_meter.look(app.session.engine_pid) if chat.running else app.cpu_meter.shares,
        plan=plan_of(chat.rounds[-1] if chat.rounds else None),
    )


def _alert(app: SpecchatApp) -> None:
    chat = app.chat
    demo = {"demo"} if app.session.has_demo else set()
    match chat.phase:
        case "dead":
            app.alert.show(chat.problem, {"restart", "pairs", *demo})
        case "failed":
            app.alert.show(chat.problem, {"retry", "pairs", *demo})
        case _ if app.context_limit.problem:
            app.alert.show(app.context_limit.problem, {"leave_out", "summary", "back"})
        case _:
            if app.alert.display:
                app.alert.show("", set())


async def _remark(app: SpecchatApp, event: Event, change: dict[str, object]) -> None:
    """What an event means beyond the state: forms to fill, words to say."""
    match event:
        case Hello():
            app.form.show(app.fields(), app.chat.pair)
        case Ready():
            app.session.make_room()
            app.settings_files.look()
            app.form.show(app.fields(), app.chat.pair)
            for note in event.notes:
                await app.transcript.note(note, "warn")
            if app.transcript.welcome is None:
                app.say(f"{event.pair} is ready")
        case Changed():
            app.form.show(app.fields(), app.chat.pair)
        case Finished():
            app.say("")
            app.terminal.ended(event)
        case Died():
            app.form.show(app.fields(), app.chat.pair)
        case Failed(during="change"):
            name = _name_of(change)
            app.form.show(app.fields(), app.chat.pair)
            app.form.fail(name, event.message)
            if not app.form.has_focus:
                app.say(visible(event.message), "warn")
        case Failed(during="load") if app.chat.phase == "ready":
            app.form.show(app.fields(), app.chat.pair)
            await _not_loaded(app, visible(event.message))
        case Failed(during="load"):
            app.form.show(app.fields(), app.chat.pair)
        case Failed():
            app.say(visible(event.message), "bad")
        case _:
            pass


async def _not_loaded(app: SpecchatApp, why: str) -> None:
    """A pair that was asked for is not there: said where it stays, unless the user called it off."""
    chat = app.chat
    if chat.refused:
        await app.transcript.note(f"{chat.refused} was not loaded: {why}; {chat.pair} stays in use", "bad")
    app.say(why, "bad" if chat.refused else "warn")


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
