"""`/` opens a list of commands that narrows as a name is typed; letters typed in the chat go to the prompt."""

from __future__ import annotations

import pytest
from driving import driving

from specchat.tui.commands.registry import COMMANDS
from specchat.tui.screens.help_and_log import HelpScreen


async def test_a_slash_lists_commands_with_a_sentence_each_and_letters_narrow_them():
    async with driving() as d:
        await d.pilot.press("/")
        shown = d.drawn(d.view.command_list)
        assert all(f"/{name}" in shown for name in list(COMMANDS)[:8])
        assert COMMANDS["help"].help in shown
        assert f"+{len(COMMANDS) - 8}" in shown
        await d.pilot.press(*"tou")
        assert d.drawn(d.view.command_list).split()[:2] == ["▸", "/tour"]
        assert d.view.command_list.size.height == 1
        await d.pilot.press("backspace", "backspace", "backspace", "backspace")
        assert not d.view.command_list.display


async def test_names_that_begin_so_come_before_those_that_contain_it():
    async with driving() as d:
        await d.pilot.press(*"/set")
        assert d.view.prompt.menu.words[:2] == ("/settings", "/set ")
        await d.pilot.press(*"tin")
        assert d.view.prompt.menu.words == ("/settings",)


@pytest.mark.parametrize("key", ["enter", "tab"])
async def test_the_marked_command_is_completed_and_not_run_yet(key):
    async with driving() as d:
        await d.pilot.press(*"/hel", key)
        assert d.view.prompt.text == "/help"
        assert not isinstance(d.app.screen, HelpScreen)
        await d.pilot.press("enter")
        await d.settle()
        assert isinstance(d.app.screen, HelpScreen)


async def test_arrows_mark_another_command_and_enter_takes_it():
    async with driving() as d:
        await d.pilot.press("/", "down", "down", "enter")
        assert d.view.prompt.text == "/pair "
        assert not d.view.command_list.display, "what follows the name is explained below"
        assert "[NAME]" in d.drawn(d.view.status)


async def test_the_mark_goes_round_and_stays_on_the_list():
    async with driving() as d:
        await d.pilot.press("/", "up")
        assert "▸ /quit" in d.drawn(d.view.command_list)
        await d.pilot.press("down")
        assert "▸ /help" in d.drawn(d.view.command_list)


async def test_escape_closes_the_list_and_keeps_what_is_typed():
    async with driving() as d:
        await d.pilot.press("/", "t", "escape")
        assert not d.view.command_list.display
        assert d.view.prompt.text == "/t"
        await d.pilot.press("r")
        assert d.view.command_list.display


async def test_a_click_takes_a_command():
    async with driving() as d:
        await d.pilot.press("/")
        await d.pilot.pause()
        await d.pilot.click(d.view.command_list, offset=(4, 3))
        assert d.view.prompt.text == "/model "
        assert d.view.prompt.has_focus


@pytest.mark.parametrize("size", [(40, 8), (60, 13)])
async def test_a_small_window_keeps_its_lines_for_the_chat_and_names_the_commands_below(size):
    async with driving(size) as d:
        await d.pilot.press("/", "t")
        assert d.view.command_list.size.height <= max(1, size[1] - 12)
        if not d.view.command_list.display:
            assert "/tree" in d.drawn(d.view.status)


async def test_text_and_two_slashes_open_no_list():
    async with driving() as d:
        for text in ("hello", "//etc", "a /help", "/nothing"):
            d.view.prompt.write(text)
            await d.pilot.pause()
            assert not d.view.command_list.display


async def test_letters_typed_in_the_chat_go_to_the_prompt_unless_they_are_keys_there():
    async with driving() as d:
        await d.say("hi")
        await d.reply("the answer")
        d.view.transcript.focus()
        await d.pilot.press("k")
        assert d.view.transcript.chosen is not None
        assert d.view.prompt.text == ""
        await d.pilot.press("W", "h", "y", "question_mark")
        assert d.view.prompt.text == "Why?"
        assert d.view.prompt.has_focus


async def test_the_chat_shows_that_it_has_the_focus():
    async with driving() as d:
        await d.say("hi")
        await d.reply("the answer")
        assert "▌" not in d.screen().splitlines()[3][:2]
        before = d.screen()
        d.view.transcript.focus()
        await d.settle()
        assert d.screen() != before


async def test_letters_behind_the_first_one_that_is_typed_in_the_chat_are_no_keys_there():
    async with driving() as d:
        await d.say("Hello")
        await d.reply()
        d.view.transcript.focus()
        await d.settle()
        await d.burst("slash", *"rename", "space", *"Now")
        assert d.view.prompt.text == "/rename Now"
