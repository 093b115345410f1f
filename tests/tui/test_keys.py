"""Keys: all of them can be remapped, wrong ones are refused by name, and the help shows those in force."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from driving import driving
from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.message_pump import MessagePump
from textual.widgets import Input

from specchat import config
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate
from specchat.errors import ConfigError
from specchat.tui.app import SpecchatApp
from specchat.tui.commands.registry import COMMANDS
from specchat.tui.screens.help_and_log import HelpScreen
from specchat.tui.services import key_bindings


def subclasses(base: type) -> set[type]:
    return {below for child in base.__subclasses__() for below in {child, *subclasses(child)}}


def test_every_binding_has_a_name_and_says_what_it_does():
    for owner, binding in key_bindings._bindings():
        assert isinstance(binding, Binding), owner
        assert binding.id, (owner, binding)
        assert binding.description, (owner, binding)
    assert {"help", "stop", "prompt.send", "transcript.copy", "pace.hold"} <= set(key_bindings.every_key())


def test_no_two_bindings_of_one_place_share_a_key():
    every = key_bindings.every_key().values()
    taken = [(key, binding.owner) for binding in every for key in binding.keys]
    assert len(taken) == len(set(taken))


def test_every_handler_is_named_for_a_message_that_exists():
    names = {message.handler_name for message in subclasses(Message)}
    handlers = [
        f"{owner.__qualname__}.{name}"
        for owner in subclasses(MessagePump)
        if owner.__module__.startswith("specchat.")
        for name in vars(owner)
        if name.lstrip("_").startswith("on_")
    ]
    assert len(handlers) > 20
    assert [name for name in handlers if name.rpartition(".")[2].lstrip("_") not in names] == []


def test_a_command_that_names_a_binding_names_one_that_exists():
    assert [c.name for c in COMMANDS.values() if c.binding and c.binding not in key_bindings.every_key()] == []


def test_every_key_that_runs_a_command_names_one_that_exists():
    run = [re.fullmatch(r"command\('(\w+)'\)", one.action) for one in SpecchatApp.BINDINGS if "command(" in one.action]
    assert run
    assert all(found and found[1] in COMMANDS for found in run)


def test_the_keys_of_the_app_are_known_without_the_app():
    code = """
import sys
from specchat.tui.services.key_bindings import every_key
assert {"help", "pace.hold", "prompt.send"} <= set(every_key())
assert "specchat.tui.app" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


ESCAPES = {id: "f12" for id, key in key_bindings.every_key().items() if "escape" in key.keys}


@pytest.mark.parametrize(("given", "said"), [(ESCAPES, "F12 "), (dict.fromkeys(ESCAPES, "none"), "")])
@pytest.mark.parametrize("opened", ["help", "pairs", "search", "add pair", "edit", "loading"])
async def test_what_is_said_about_keys_is_true_of_the_users_own(given, said, opened):
    async with driving(keys=given, loaded=opened != "loading", engine_here=True) as d:
        match opened:
            case "help" | "pairs":
                await d.pilot.press("f1" if opened == "help" else "f4")
            case "search":
                await d.pilot.press("ctrl+r")
            case "add pair":
                await d.pilot.press("f4", "a")
            case "edit":
                await d.say("hi")
                await d.reply("hello")
                await d.say("/edit")
            case "loading":
                await d.hear(ev.Loading("fetch", "model.safetensors", 1, 2))
        await d.settle()
        screen = d.screen()
        assert "Esc" not in screen
        assert (f"{said}closes" in screen or f"{said}leaves" in screen or f"{said}cancels" in screen) == bool(said)


async def test_what_must_wait_says_with_which_key_it_need_not():
    async with driving(keys={"stop": "f12"}) as d:
        await d.say("hi")
        await d.reply(upto=2, finish=False)
        for said in ("/retry", "/race"):
            await d.say(said)
            assert "a reply is being written; F12 stops it" in d.drawn(d.view.notice)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tokns": "f9"}, "did you mean 'tokens'"),
        ({"tokens": "f99"}, "'f99' is not a key"),
        ({"tokens": "crtl+x"}, "'crtl' is not a modifier; did you mean 'ctrl'"),
        ({"tokens": ""}, 'an empty name is not a key; "none" turns a binding off'),
        ({"tokens": "f9, escpe"}, "'escpe' is not a key; did you mean 'escape'"),
        ({"tokens": "x"}, "x is written into the prompt"),
        ({"prompt.send": "s"}, "s is written into the prompt"),
        ({"tokens": "ctrl+k"}, "Ctrl+K belongs to the prompt (delete to line end)"),
        ({"tokens": "f1"}, "F1 is bound twice, also to help (all keys and commands)"),
        ({"tokens": "f9", "stats": "F9"}, "F9 is bound twice"),
        ({"transcript.copy": "j"}, "j is bound twice, also to transcript.next"),
        ({"transcript.copy": "f1"}, "F1 is bound twice, also to help"),
    ],
)
def test_a_key_that_cannot_work_is_refused_and_said(given, problem):
    found = [f"{id} {why}" for id, why in key_bindings.problems(given)]
    assert any(problem in line for line in found), found


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tokens": "f9"},
        {"tokens": "Ctrl+F8"},
        {"tokens": "none"},
        {"help": "f8", "tokens": "f1"},  # two that change places
        {"transcript.copy": "Y"},
        {"transcript.copy": "?"},
        {"prompt.newline": "ctrl+k"},  # the prompt may give up a key of its own
    ],
)
def test_a_key_that_can_work_is_taken(given):
    assert list(key_bindings.problems(given)) == []


def test_a_wrong_key_is_refused_with_file_line_and_name():
    file = config.private_dir(config.config_dir()) / "config.toml"
    file.write_text('[keys]\ntokens = "f9"\nprompt.send = "f2"\n', encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        config.user_keys(key_bindings.problems)
    assert f"{file}, line 3: [keys] prompt.send = 'f2': F2 is bound twice, also to settings" in str(error.value)


@pytest.mark.parametrize(
    ("key", "name"),
    [("ctrl+f8", "Ctrl+F8"), ("full_stop", "."), ("ctrl+r", "Ctrl+R"), ("G", "G"), ("shift+enter", "Shift+Enter"),
     ("less_than_sign", "<"), ("escape", "Esc"), ("pageup", "PgUp")],
)  # fmt: skip
def test_keys_are_shown_as_people_write_them(key, name):
    assert key_bindings.name_of(key) == name


async def test_a_remapped_key_acts_the_old_one_does_not_and_help_shows_it():
    async with driving(keys={"help": "f9", "prompt.send": "ctrl+g", "prompt.newline": "enter"}) as d:
        await d.pilot.press("f1")
        assert not isinstance(d.app.screen, HelpScreen)
        await d.pilot.press("f9")
        await d.pilot.pause()
        assert isinstance(d.app.screen, HelpScreen)
        assert "F9" in d.screen()
        await d.pilot.press("escape")
        await d.pilot.press("a", "enter", "b")
        assert d.view.prompt.text == "a\nb"
        await d.pilot.press("ctrl+g")
        await d.pilot.pause()
        assert d.link.last(Generate).messages[0].content == "a\nb"
        assert "F9 help" in d.drawn(d.view.status)


def test_the_help_lists_the_keys_of_the_text_area_that_are_left():
    entries = dict(entry for _, entries in key_bindings.key_sections({}) for entry in entries)
    assert entries["Ctrl+Z"].startswith("go to the background")
    assert entries["Ctrl+K"] == "delete to line end"
    assert entries["F7"] == "select all"
    assert entries["Ctrl+C"].startswith("copy the selection, else stop")
    changed = dict(key_bindings.key_sections({"prompt.newline": "ctrl+k"}))
    assert [said for key, said in changed["In the prompt"] if key == "Ctrl+K"] == ["new line"]


async def test_arrows_still_move_where_recalling_has_another_key():
    async with driving(keys={"prompt.earlier": "ctrl+up"}) as d:
        d.view.prompt.write("one\ntwo")
        await d.pilot.press("up")
        assert d.view.prompt.cursor_location == (0, 3)


async def test_what_tells_of_a_key_tells_the_key_in_force():
    async with driving(keys={"restart": "f12"}) as d:
        await d.hear(ev.Died(1, "gone"))
        assert "F12 restarts it" in d.drawn(d.view.status)
        assert "Restart the engine (F12)" in d.screen()


async def test_alt_with_a_letter_types_nothing_in_the_prompt_and_acts_there_where_it_is_bound():
    async with driving(keys={"help": "alt+h"}) as d:
        for letter in ("s", "h"):  # what a terminal sends: the letter comes with it
            await d.pilot.press("w")
            d.app.post_message(events.Key(f"alt+{letter}", letter))
            await d.pilot.pause()
        assert d.view.prompt.text == "ww"
        assert isinstance(d.app.screen, HelpScreen)


@pytest.mark.parametrize("key", ["ctrl+o", "ctrl+r"])
async def test_alt_with_a_letter_types_nothing_in_other_lines(key, tmp_path):
    async with driving(store=tmp_path / "chats.db") as d:
        await d.pilot.press(key)
        await d.settle()
        line = d.app.screen.query(Input).first()
        line.focus()
        await d.pilot.press("w")
        d.app.post_message(events.Key("alt+q", "q"))
        await d.pilot.press("x")
        assert line.value == "wx"
