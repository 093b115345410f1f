"""Commands about pairs and settings, and the values that may follow them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specchat.errors import SpecchatError, UsageError, cut, meant, nearest
from specchat.tui.screens.chat_screen import ChatScreen
from specchat.tui.state.settings_fields import Field, field_not_in_use, fields_of, methods_of
from specchat.tui.state.what_if import may_be_asked, pairs_of
from specchat.tui.text import numbers

PAIR = "pair"
"""The setting that has a screen of its own and is not a field of the form."""


async def pair(screen: ChatScreen, name: str) -> None:
    if name:
        await screen.context.pairs.choose(name)
    else:
        screen.choose_pair()


async def set_setting(screen: ChatScreen, text: str) -> None:
    name_and_value = text.split(maxsplit=1)
    if len(name_and_value) < 2:
        raise UsageError("/set wants a name and a value: /set temperature 0.8")
    await change_setting(screen, *name_and_value)


async def what_if(screen: ChatScreen, text: str) -> None:
    """Show what other settings would have meant for the reply; without any, those in force, if they are others."""
    changes = {}
    for name, value in pairs_of(text) if text else ():
        fields = _fields(screen)
        field = fields.get(name)
        if field is None and (found := _not_in_use(screen, name)):
            field = found[0]
        if field is None or not may_be_asked(name):
            near = meant(name, [one for one in fields if may_be_asked(one)])
            raise UsageError(f"/whatif asks about how to guess and to sample, not {cut(name, 40)!r}{near}")
        changes[name] = field.parse(value)
    screen.what_ifs.open(changes)


async def save_settings(screen: ChatScreen, what: str) -> None:
    if what not in ("", "pair"):
        raise UsageError(f"/save does not know {what!r}; /save keeps the settings as default, /save pair for this pair")
    if screen.context.session.player is not None:
        raise UsageError("settings can be saved once a pair is ready")
    if screen.chat.engine.unanswered:  # one of them may be refused, and would be refused at the next start
        screen.events.when_answered = lambda: save_settings(screen, what)
        words = "saved once the engine has answered"
        screen.context.app.say(words)
        screen.form.show_remark(words)
        return
    saved = screen.context.settings_files.save(into_pair=what == "pair")
    screen.side_panel.show_fields()
    for one in saved:
        await screen.context.app.note(f"saved {one.line()}".replace(str(Path.home()), "~"))
    count = sum(len(one.written) + len(one.removed) for one in saved)
    words = f"saved {count} setting{'s' if count > 1 else ''}" if count else "nothing to save: it starts like this"
    screen.context.app.say(words)
    screen.form.show_remark(words)


async def lens(screen: ChatScreen, what: str) -> None:
    """Have the target's layers looked at from the next round on, or no longer; without a word the other of the two."""
    app, engine = screen.context.app, screen.chat.engine
    if what not in ("", "on", "off"):
        raise UsageError(f"/lens does not know {cut(what, 40)!r}{nearest(what, ('on', 'off'))}")
    if screen.chat.background.replaying:
        raise UsageError(app.recording_reason)
    on = what == "on" or (not what and not engine.settings.get("lens"))
    screen.context.session.change("lens", on)
    if engine.phase == "ready":
        app.say(LENS_ON if on else "the layers are not looked at any more")


LENS_ON = "each token now says at which layer it was decided: choose one in the tree · replies take longer, /lens off"


async def choose_method(screen: ChatScreen, name: str, *, setting: str) -> None:
    if name:
        await change_setting(screen, setting, name)
        return
    fields, known = _fields(screen), bool(screen.side_panel.fields())
    now = f"{setting} = {fields[setting].value}" if known else f"{setting} comes with the pair"
    screen.context.app.say(f"{now}; known: {', '.join(fields[setting].info.choices)}")


async def change_setting(screen: ChatScreen, name: str, text: str) -> None:
    """Change a setting by its name, live or by loading again, whichever it takes."""
    if name == PAIR:
        await screen.context.pairs.choose(text)
        return
    fields = _fields(screen)
    if name not in fields:
        _change_option_not_in_use(screen, name, text, [PAIR, *fields])
        return
    field = fields[name]
    value = field.parse(text)
    if field.info.live:
        screen.context.session.change(name, value)
        if screen.chat.engine.phase == "ready":  # else it says itself what becomes of the change
            screen.context.app.say(f"{name} = {numbers.setting(value)}")
    else:
        await screen.context.session.load({name: value})


def _change_option_not_in_use(screen: ChatScreen, name: str, text: str, known: Sequence[str]) -> None:
    """Keep an option of a method that is not in use; raises UsageError where no method has it."""
    if (found := _not_in_use(screen, name)) is None:
        all_of_them = f"; {screen.context.app.key_of('settings') or '/settings'} shows all of them"
        raise UsageError(f"there is no setting {cut(name, 40)!r}{meant(name, known) or all_of_them}")
    field, chooses = found
    value = field.parse(text)
    screen.context.session.change(name, value)
    if screen.chat.engine.phase == "ready":
        method = name.partition(".")[0]
        kept = f"{name} = {numbers.setting(value)}"
        screen.context.app.say(f"{kept} holds while {method} is in use · /{chooses} {method} chooses it")


def _not_in_use(screen: ChatScreen, name: str) -> tuple[Field, str] | None:
    hello = screen.chat.engine.hello
    return None if hello is None else field_not_in_use(hello, screen.chat.engine.settings, name)


def _fields(screen: ChatScreen) -> dict[str, Field]:
    """What can be set, by name; with the options' own defaults where nobody knows the pair's settings yet."""
    hello = screen.chat.engine.hello
    if hello is None:
        raise UsageError("the engine has not said yet what can be set")
    return {field.name: field for field in screen.side_panel.fields() or fields_of(hello, {})}


def setting_and_value(screen: ChatScreen, given: list[str]) -> Sequence[str]:
    """What `/set` takes: a setting, then one of its values where they have names."""
    fields = {field.name: field for field in screen.side_panel.fields()}
    if not given:
        return [PAIR, *fields]
    if given == [PAIR]:
        return pair_names(screen, [])
    if len(given) > 1 or given[0] not in fields:
        return ()
    info = fields[given[0]].info
    return ("true", "false") if info.kind == "bool" else info.choices


def settings_to_try(screen: ChatScreen, given: list[str]) -> Sequence[str]:
    """What `/whatif` takes: settings and values by turns."""
    if len(given) % 2 == 0:
        return [name for name in setting_and_value(screen, []) if may_be_asked(name)]
    return setting_and_value(screen, given[-1:]) if given[-1] != PAIR else ()


def pair_names(screen: ChatScreen, given: list[str]) -> Sequence[str]:
    try:
        return () if given else [pair.name for pair in screen.context.pairs.known()]
    except SpecchatError:  # a broken file: the screen of pairs reports it
        return ()


def method_names(screen: ChatScreen, given: list[str], *, setting: str) -> Sequence[str]:
    hello = screen.chat.engine.hello
    return () if given or hello is None else [method.name for method in methods_of(hello.methods, setting)]
