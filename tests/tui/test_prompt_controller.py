"""Writing: history, search, pastes, files, completion, the editor, and what waits."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest
from driving import driving, wait_for
from fake import rounds_of, stats_of
from textual import events

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Count
from specchat.store.prompt_history import History
from specchat.tui.screens.search import SearchScreen
from specchat.tui.widgets.messages import UserView
from specchat.tui.widgets.prompt import Prompt


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "notes.md").write_text("one\ntwo\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("x = 1\n")
    (tmp_path / "my file.txt").write_text("blank\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def known(*texts: str) -> History:
    history = History()
    for text in texts:
        history.add(text)
    return history


# ------------------------------------------------------------------------------------------ history, search


async def test_up_walks_through_what_was_sent_and_down_returns_to_what_was_being_written():
    async with driving(history=known("first", "second")) as d:
        d.view.prompt.write("unsent")
        await d.pilot.press("up")
        assert d.view.prompt.text == "second"
        await d.pilot.press("up", "up")
        assert d.view.prompt.text == "first"
        await d.pilot.press("down", "down")
        assert d.view.prompt.text == "unsent"


async def test_searching_finds_while_typing_and_enter_puts_it_into_the_prompt():
    async with driving(history=known("write a poem", "fix my code", "a poem on rain")) as d:
        await d.pilot.press("ctrl+r")
        await d.pilot.pause()
        assert isinstance(d.app.screen, SearchScreen)
        await d.pilot.press(*"poem")
        assert "2 found" in d.screen()
        assert "fix my code" not in d.screen()
        await d.pilot.press("ctrl+r", "enter")
        await d.pilot.pause()
        assert d.view.prompt.text == "write a poem"
        assert d.generates() == []


async def test_leaving_the_search_leaves_the_prompt_alone():
    async with driving(history=known("first")) as d:
        d.view.prompt.write("half a thought")
        await d.pilot.press("ctrl+r")
        await d.pilot.pause()
        assert d.app.screen.query_one("Input").value == "", "all messages are there, whatever is being written"
        assert "first" in d.screen()
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.view.prompt.text == "half a thought"


async def test_what_was_sent_is_never_read_as_markup_in_the_search():
    async with driving(history=known("say [bold]x[/] \x1b[31mred")) as d:
        await d.pilot.press("ctrl+r")
        await d.pilot.pause()
        assert "say [bold]x[/] ␛[31mred" in d.screen()


async def test_keys_act_in_the_order_in_which_they_are_pressed():
    async with driving() as d:
        for key, character in (("a", "a"), ("ctrl+j", None), ("b", "b"), ("left", None), ("c", "c"), ("enter", "\r")):
            d.app.post_message(events.Key(key, character))
        d.app.post_message(events.Key("d", "d"))
        await d.pilot.pause()
        assert d.generates()[0].messages[0].content == "a\ncb"


# ------------------------------------------------------------------------------------------------- pastes


# -------------------------------------------------------------------------------------------------- files


async def test_a_mentioned_file_is_sent_with_the_message_and_shown_folded(folder):
    async with driving() as d:
        await d.say("explain @notes.md please")
        assert d.generates()[0].messages[0].content == (
            'explain notes.md please\n\n<file path="notes.md" lines="2">\none\ntwo\n</file>'
        )
        assert "▸ @notes.md (2 lines)" in d.screen()
        assert "<file" not in d.screen()
        await d.pilot.click(UserView)
        await d.pilot.pause()
        assert "▾ @notes.md (2 lines)" in d.screen()
        assert "two" in d.screen()
        d.view.prompt.focus()
        await d.pilot.press("up")
        assert d.view.prompt.text == "explain @notes.md please"


async def test_a_file_that_does_not_exist_is_said_and_the_text_stays(folder):
    async with driving() as d:
        await d.say("explain @note.md")
        assert "there is no file 'note.md'; did you mean 'notes.md'?" in d.drawn(d.view.notice)
        assert d.view.prompt.text == "explain @note.md"
        assert d.generates() == []


async def test_what_is_attached_is_counted_before_it_is_sent(folder):
    async with driving() as d:
        d.view.prompt.insert("explain @notes.md please")
        await wait_for(d.pilot, lambda: any(isinstance(command, Count) for command in d.link.sent))
        question = d.link.last(Count)
        assert question.messages[0].content.endswith("two\n</file>")
        await d.hear(ev.Counted(question.id, 1280, 8192))
        assert "with what is attached: 1,280 of 8,192 tokens" in d.drawn(d.view.status)
        await d.pilot.press("!")
        assert "1,280" not in d.drawn(d.view.status)


async def test_plain_text_is_not_counted_while_it_is_typed(folder):
    async with driving() as d:
        d.view.prompt.insert("mail me@example.com about [pasted nothing]")
        await d.pilot.pause(0.6)
        assert not any(isinstance(command, Count) for command in d.link.sent)


# --------------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize(
    ("typed", "tabs", "text"),
    [
        ("/ret", 1, "/retry"),
        ("/set max_", 1, "/set max_tokens"),
        ("/set drafter dr", 1, "/set drafter draft_model"),
        ("/drafter p", 1, "/drafter prompt_lookup"),
        ("/pair q", 1, "/pair qwen"),
        ("/theme nor", 1, "/theme nord"),
        ("/tree riv", 1, "/tree river"),
        ("/pair ", 1, "/pair smol"),  # what they share is nothing: the first one
        ("/pair smol", 1, "/pair smol"),
        ("/pair s", 2, "/pair smol"),
        ("see @no", 1, "see @notes.md"),
        ("see @sr", 2, "see @src/app.py"),
        ("see @my", 1, 'see @"my file.txt"'),
    ],
)
async def test_tab_completes_commands_arguments_and_paths(folder, typed, tabs, text):
    async with driving() as d:
        d.view.prompt.insert(typed)
        await d.pilot.press(*["tab"] * tabs)
        assert d.view.prompt.text.rstrip() == text
        assert d.app.focused is d.view.prompt


@pytest.mark.parametrize(("typed", "text"), [("/set max_", "/set max_tokens "), ("/set width", "/set width ")])
async def test_tab_goes_on_to_the_value_where_a_command_needs_one(typed, text):
    async with driving() as d:
        d.view.prompt.insert(typed)
        await d.pilot.press("tab")
        assert d.view.prompt.text == text


async def test_tab_again_offers_the_next_possibility_and_begins_anew():
    async with driving() as d:
        d.view.prompt.insert("/pair ")
        seen = []
        for _ in range(4):
            await d.pilot.press("tab")
            seen.append(d.view.prompt.text)
        assert seen == ["/pair smol", "/pair smol-1.7b", "/pair qwen", "/pair smol"]


async def test_tab_moves_on_where_nothing_can_be_completed():
    async with driving() as d:
        await d.pilot.press("h", "i", "tab")
        assert not isinstance(d.app.focused, Prompt)


async def test_possibilities_stand_in_the_status_line(folder):
    async with driving() as d:
        d.view.prompt.insert("/pair s")
        await d.pilot.pause()
        assert "smol  smol-1.7b" in d.drawn(d.view.status)
        d.view.prompt.write("")
        d.view.prompt.insert("look at @")
        await d.pilot.pause()
        assert "notes.md  src/" in d.drawn(d.view.status)


# --------------------------------------------------------------------------------------------- the editor


def an_editor(folder, code: str) -> str:
    script = folder / "editor.py"
    script.write_text(f"import sys\nfrom pathlib import Path\nfile = Path(sys.argv[1])\n{code}\n")
    return f"{sys.executable} {script}"


async def test_the_prompt_is_edited_elsewhere(tmp_path, monkeypatch):
    code = "assert file.stat().st_mode & 0o777 == 0o600; file.write_text(file.read_text() + ' and more\\n')"
    monkeypatch.setenv("VISUAL", an_editor(tmp_path, code))
    async with driving() as d:
        monkeypatch.setattr(d.app, "suspend", nullcontext)
        d.view.prompt.write("text")
        await d.pilot.press("ctrl+g")
        await d.pilot.pause()
        assert d.view.prompt.text == "text and more"


@pytest.mark.parametrize(
    ("editor", "why"),
    [
        ("sys.exit(3)", "ended with code 3; the prompt is as it was"),
        ("file.write_bytes(b'\\xff')", "could not be used"),
    ],
)
async def test_an_editor_that_fails_changes_nothing(tmp_path, monkeypatch, editor, why):
    monkeypatch.setenv("VISUAL", an_editor(tmp_path, editor))
    async with driving((200, 40)) as d:
        monkeypatch.setattr(d.app, "suspend", nullcontext)
        d.view.prompt.write("text")
        await d.pilot.press("ctrl+g")
        await d.pilot.pause()
        assert why in d.drawn(d.view.notice)
        assert d.view.prompt.text == "text"


async def test_an_editor_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setenv("VISUAL", "no-such-editor -w")
    async with driving() as d:
        monkeypatch.setattr(d.app, "suspend", nullcontext)
        await d.pilot.press("ctrl+g")
        await d.pilot.pause()
        assert "no-such-editor could not be used: No such file" in d.drawn(d.view.notice)


# ------------------------------------------------------------------------------------------ what waits


@pytest.mark.parametrize("key", ["escape", "up"])
async def test_what_waits_is_shown_and_comes_back_for_editing(key):
    async with driving() as d:
        await d.say("first")
        await d.reply(upto=3, finish=False)
        await d.say("second")
        assert "⧗ waits: second" in d.drawn(d.view.queued_message)
        await d.pilot.press(key)
        await d.pilot.pause()
        assert d.view.prompt.text == "second"
        assert not d.view.queued_message.display
        assert not any(isinstance(command, Cancel) for command in d.link.sent)
        await d.hear(ev.Finished(1, "end", "", stats_of(rounds_of()), 1.0))
        assert len(d.generates()) == 1


@pytest.mark.parametrize(("typed", "left"), [("", "second"), ("third", "third")])
async def test_what_waits_is_not_lost_when_another_chat_begins(typed, left):
    async with driving() as d:
        await d.say("first")
        await d.reply(upto=3, finish=False)
        await d.say("second")
        await d.pilot.press(*typed, "ctrl+n")
        await d.settle()
        assert not d.app.chat.turns
        assert d.view.prompt.text == left
        await d.hear(ev.Finished(1, "cancelled", "", stats_of(rounds_of()), 1.0))
        assert "the message that waited was not sent" in d.drawn(d.view.notice)
        assert d.view.prompt.sent.found("second") == ["second"]
        assert len(d.generates()) == 1


@pytest.mark.parametrize(("typed", "kept"), [("", "second"), ("third", "second\n\nthird")])
async def test_what_waits_when_the_app_is_left_is_in_the_prompt_when_the_chat_is_opened(tmp_path, typed, kept):
    store = tmp_path / "chats.db"
    async with driving(store=store) as d:
        await d.say("first")
        await d.reply(upto=3, finish=False)
        await d.say("second")
        await d.pilot.press(*typed)
        d.view.current_chat.close()
        id = d.app.chat.id
    for expected, clears in ((kept, False), (kept, True), ("", False)):  # it stays until it is taken out of the prompt
        async with driving(store=store, chat=id) as d:
            await wait_for(d.pilot, lambda d=d: d.app.chat.turns)
            await d.settle()
            assert d.view.prompt.text == expected
            assert d.app.chat.queued is None
            if clears:
                d.view.prompt.clear()
            d.view.current_chat.close()


async def test_a_text_that_was_being_edited_is_no_draft(tmp_path):
    store = tmp_path / "chats.db"
    async with driving(store=store) as d:
        await d.say("first")
        await d.reply()
        await d.say("/edit")
        assert d.view.prompt.text == "first"
        d.view.current_chat.close()
        id = d.app.chat.id
    async with driving(store=store, chat=id) as d:
        await wait_for(d.pilot, lambda: d.app.chat.turns)
        await d.settle()
        assert d.view.prompt.text == ""


async def test_escape_stops_where_something_is_being_written():
    async with driving() as d:
        await d.say("first")
        await d.reply(upto=3, finish=False)
        await d.say("second")
        await d.pilot.press("x", "escape")
        await d.pilot.pause()
        assert isinstance(d.link.sent[-1], Cancel)
        assert d.app.chat.queued == "second"
