"""Commands about pairs and settings, and the values that may follow them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specchat.errors import SpecchatError, UsageError, cut, meant
from specchat.tui.control.actions import Actions
from specchat.tui.state.settings_fields import Field, field_not_in_use, fields_of, methods_of
from specchat.tui.text import numbers

PAIR = "pair"
"""The setting that has a screen of its own and is not a field of the form."""


async def pair(actions: Actions, name: str) -> None:
    if not name:
        actions.choose_pair()
        return
    await actions.pairs.choose(name)


async def settings(actions: Actions, _: str) -> None:
    actions.side_panel.toggle_settings()


async def set_setting(actions: Actions, text: str) -> None:
    name_and_value = text.split(maxsplit=1)
    if len(name_and_value) < 2:
        raise UsageError("/set wants a name and a value: /set temperature 0.8")
    await change_setting(actions, *name_and_value)


async def save_settings(actions: Actions, what: str) -> None:
    if what not in ("", "pair"):
        raise UsageError(f"/save does not know {what!r}; /save keeps the settings as default, /save pair for this pair")
    if actions.session.player is not None:
        raise UsageError("settings can be saved once a pair is ready")
    saved = actions.settings_files.save(into_pair=what == "pair")
    actions.side_panel.show_fields()
    for one in saved:
        await actions.views.transcript.add_note(f"saved {one.line()}".replace(str(Path.home()), "~"))
    count = sum(len(one.written) + len(one.removed) for one in saved)
    words = f"saved {count} setting{'s' if count > 1 else ''}" if count else "nothing to save: it starts like this"
    actions.ports.notify(words)
    actions.side_panel.form.show_remark(words)


async def choose_method(actions: Actions, name: str, *, setting: str) -> None:
    if name:
        await change_setting(actions, setting, name)
        return
    fields, known = _fields(actions), bool(actions.side_panel.fields())
    now = f"{setting} = {fields[setting].value}" if known else f"{setting} comes with the pair"
    actions.ports.notify(f"{now}; known: {', '.join(fields[setting].info.choices)}")


async def change_setting(actions: Actions, name: str, text: str) -> None:
    """Change a setting by its name, live or by loading again, whichever it takes."""
    if name == PAIR:
        await actions.pairs.choose(text)
        return
    fields = _fields(actions)
    if name not in fields:
        _change_option_not_in_use(actions, name, text, [PAIR, *fields])
        return
    field = fields[name]
    value = field.parse(text)
    if field.info.live:
        actions.session.change(name, value)
        if actions.chat.engine.phase == "ready":  # else it says itself what becomes of the change
            actions.ports.notify(f"{name} = {numbers.setting(value)}")
    else:
        await actions.session.load({name: value})


def _change_option_not_in_use(actions: Actions, name: str, text: str, known: Sequence[str]) -> None:
    """Keep an option of a method that is not in use; raises UsageError where no method has it."""
    hello, engine = actions.chat.engine.hello, actions.chat.engine
    found = field_not_in_use(hello, engine.settings, name) if hello is not None else None
    if found is None:
        all_of_them = f"; {actions.ports.key_of('settings') or '/settings'} shows all of them"
        raise UsageError(f"there is no setting {cut(name, 40)!r}{meant(name, known) or all_of_them}")
    field, chooses = found
    value = field.parse(text)
    actions.session.change(name, value)
    if engine.phase == "ready":
        method = name.partition(".")[0]
        kept = f"{name} = {numbers.setting(value)}"
        actions.ports.notify(f"{kept} holds while {method} is in use · /{chooses} {method} chooses it")


def _fields(actions: Actions) -> dict[str, Field]:
    """What can be set, by name; with the options' own defaults where nobody knows the pair's settings yet."""
    hello = actions.chat.engine.hello
    if hello is None:
        raise UsageError("the engine has not said yet what can be set")
    return {field.name: field for field in actions.side_panel.fields() or fields_of(hello, {})}


def setting_and_value(actions: Actions, given: list[str]) -> Sequence[str]:
    """What `/set` takes: a setting, then one of its values where they have names."""
    fields = {field.name: field for field in actions.side_panel.fields()}
    if not given:
        return [PAIR, *fields]
    if given == [PAIR]:
        return pair_names(actions, [])
    if len(given) > 1 or given[0] not in fields:
        return ()
    info = fields[given[0]].info
    return ("true", "false") if info.kind == "bool" else info.choices


def pair_names(actions: Actions, given: list[str]) -> Sequence[str]:
    try:
        return () if given else [pair.name for pair in actions.pairs.known()]
    except SpecchatError:  # a broken file: the screen of pairs reports it
        return ()


def method_names(actions: Actions, given: list[str], *, setting: str) -> Sequence[str]:
    return (
        ()
        if given or not actions.chat.engine.hello
        else [method.name for method in methods_of(actions.chat.engine.hello.methods, setting)]
    )
