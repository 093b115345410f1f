"""Slash commands and the palette come from one registry."""

from __future__ import annotations

import pytest
from driving import driving, wait_for
from fake import LOSS, SETTINGS, hello, ready

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Generate, Load, Message
from specchat.errors import UsageError
from specchat.tui.commands.registry import COMMANDS, find, help_sections, hint
from specchat.tui.screens.help_and_log import HelpScreen


def test_a_command_is_found_by_its_word_and_text_is_none():
    assert find("hello") is None
    assert find("//etc is a path") is None
    command, argument = find("/set width 4")
    assert (command.name, argument) == ("set", "width 4")


@pytest.mark.parametrize("said", ["/rename\nx y", "/rename \n x y", "/rename\tx y", "/rename\u00a0x y "])
def test_any_white_space_ends_the_name_of_a_command(said):
    command, argument = find(said)
    assert (command.name, argument) == ("rename", "x y")


def test_what_a_command_does_not_take_is_refused():
    taking_nothing = [command.name for command in COMMANDS.values() if not command.usage]
    assert "log" in taking_nothing
    for name in taking_nothing:
        with pytest.raises(UsageError, match=f"/{name} takes no argument, but got 'x y'"):
            find(f"/{name} x y")


def test_an_unknown_word_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="no command /rety; did you mean '/retry'"):
        find("/rety")
    with pytest.raises(UsageError, match="no command /xyzzy; /help shows all of them"):
        find("/xyzzy")


def test_every_command_stands_in_the_help():
    told = {left.split()[0] for _, entries in help_sections() for left, _ in entries if left[:1] == "/" != left}
    assert told == {f"/{name}" for name in COMMANDS}


def test_hints_follow_what_is_typed():
    assert hint("/pai").startswith("/pair [NAME] – ")
    assert "/tree" in hint("/t")
    assert "/tokens" in hint("/t")
    assert hint("/set wid").startswith("/set NAME VALUE")
    assert hint("hello") == hint("//x") == hint("/a\nb") == ""


async def test_an_unknown_command_is_not_sent_and_stays_in_the_prompt():
    async with driving() as d:
        await d.say("/rety")
        assert "did you mean '/retry'" in d.drawn(d.view.notice)
        assert d.view.prompt.text == "/rety"
        assert not any(isinstance(c, Generate) for c in d.link.sent)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("/rety", "there is no command"),
        ("/set temprature 1", "did you mean 'temperature'"),
        ("/set xyzzy 1", "there is no setting 'xyzzy'; F2 shows all of them"),
        (
            "/set prompt_lookup.max_ngrm 3",
            "drafter 'prompt_lookup' has no option 'max_ngrm'; did you mean 'max_ngram'?",
        ),
        ("/set chain.x 3", "policy 'chain' has no option 'x'; it has none"),
        ("/set width", "wants a name"),
        ("/log x", "takes no argument"),
        ("/tree rivr", "did you mean 'river'"),
        ("/speed fast", "rounds per second"),
        ("/step none", "a number of rounds"),
        ("/step ²", "a number of rounds"),
        ("/pause", "nothing is being written"),
        ("/save all", "/save does not know 'all'"),
        ("/race", "no question"),
    ],
)
async def test_a_command_that_is_refused_stays_selected_with_the_reason(said, why):
    async with driving() as d:
        await d.say(said)
        assert why in d.drawn(d.view.notice)
        assert d.view.prompt.text == d.view.prompt.selected_text == said
        await d.pilot.press("ctrl+c")
        assert not d.view.prompt.selected_text, "what was copied does not stand in the way of leaving"
        await d.pilot.press("!")
        assert d.view.prompt.text == said + "!"
        assert why not in d.drawn(d.view.notice)


async def test_what_is_typed_behind_the_enter_key_begins_the_next_text():
    def keys(text: str) -> list[str]:
        return [{" ": "space", "/": "slash"}.get(letter, letter) for letter in text]

    async with driving() as d:
        prompt = d.view.prompt
        prompt.write("/set width 4")
        await d.burst("enter", *keys("tell me more"))
        assert prompt.text == "tell me more"
        assert d.link.last(Change).settings == {"width": 4}
        await d.burst("enter", *keys("and then"))
        assert (prompt.text, d.link.last(Generate).messages[-1].content) == ("and then", "tell me more")
        prompt.write("/set width 5")
        await d.burst("enter", *keys("/set width 6"), "enter", *keys("so"))
        assert prompt.text == "so"
        changes = [command.settings for command in d.link.sent if isinstance(command, Change)]
        assert changes == [{"width": 4}], "the last value waits until the engine has answered"
        assert d.app.context.chat.engine.chosen["width"] == 6
        prompt.write("/set wdith 4")
        await d.burst("enter", *keys("never mind"))
        assert prompt.text == "never mind", "typing replaces a command that was refused"
        prompt.write("see @nowhere.txt")
        await d.burst("enter", *keys("yes"))
        assert prompt.text == "see @nowhere.txt\nyes", "no message is lost"


async def test_what_is_typed_takes_the_place_of_a_command_that_was_refused():
    async with driving() as d:
        await d.say("/rety")
        await d.pilot.press(*"/new", "enter")
        assert d.view.prompt.text == ""


@pytest.mark.parametrize("said", ["/retry", "/fork instead"])
async def test_a_command_that_must_wait_stays_until_the_reply_is_written(said):
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=2, finish=False)
        await d.say(said)
        assert "a reply is being written" in d.drawn(d.view.notice)
        assert d.view.prompt.selected_text == said


async def test_two_slashes_send_one():
    async with driving() as d:
        await d.say("//usr is a folder")
        assert d.link.last(Generate).messages[0].content == "/usr is a folder"


async def test_a_chat_is_renamed_in_one_line_and_a_setting_may_stand_below_its_command():
    async with driving() as d:
        await d.say("/rename\na new\nname")
        assert d.app.chat.title == "a new name"
        await d.say("/set width\n7")
        assert d.link.sent[-1] == Change({"width": 7})


async def test_the_pair_is_set_like_every_setting():
    async with driving() as d:
        await d.say("/set pair qwenn")
        assert "did you mean 'qwen'" in d.drawn(d.view.notice)
        await d.say("/set pair qwen")
        assert d.link.last(Load).settings["pair"] == "qwen"


async def test_the_pair_and_the_names_of_pairs_are_completed_behind_set():
    async with driving() as d:
        complete = d.app.prompt_input.complete
        assert complete("/set pai").words == ("pair ",)
        assert complete("/set pair q").words == ("qwen",)


async def test_an_option_of_a_method_that_is_not_in_use_is_kept_and_it_is_said_when_it_holds():
    async with driving() as d:
        await d.hear(ev.Changed({**SETTINGS, "drafter": "draft_model"}, LOSS))
        await d.say("/set prompt_lookup.max_ngram 5")
        assert d.link.sent[-1] == Change({"method_options": {"prompt_lookup.max_ngram": 5}})
        told = d.drawn(d.view.notice)
        assert "max_ngram = 5 holds while prompt_lookup is in use · /drafter prompt_lookup chooses it" in told
        await d.say("/set prompt_lookup.max_ngram 99")
        assert "outside its range: 1 to 16" in d.drawn(d.view.notice)


async def test_commands_do_what_they_say():
    async with driving() as d:
        await d.say("/drafter draft_model")
        assert d.link.sent[-1] == Change({"drafter": "draft_model"})
        await d.say("/temperature 1")
        assert "no command" in d.drawn(d.view.notice)
        d.view.prompt.clear()
        await d.say("/set temperature hot")
        assert "is not a number" in d.drawn(d.view.notice)
        await d.say("/set dtype float32")
        assert d.link.last(Load).settings["dtype"] == "float32"
        await d.say("/tree log")
        assert d.view.tree_panel.mode == "log"
        await d.say("/tree rivr")
        assert "did you mean 'river'" in d.drawn(d.view.notice)
        await d.say("/pair smoll")
        assert "did you mean 'smol'" in d.drawn(d.view.notice)


async def test_the_system_message_goes_first_and_can_be_removed():
    async with driving() as d:
        await d.say("/system Be brief.")
        await d.say("hi")
        assert d.link.last(Generate).messages[0] == Message("system", "Be brief.")
        await d.reply("ok")
        assert d.drawn(d.view.system_line).startswith("system: Be brief.")
        await d.say("/system -")
        assert not d.view.system_line.display
        await d.say("again")
        assert d.link.last(Generate).messages[0].role == "user"


async def test_a_system_message_is_saved_by_name_and_used_in_other_chats():
    async with driving() as d:
        await d.say("/system save pirate")
        assert "no system message to save" in d.drawn(d.view.notice)
        await d.say("/system Talk like a pirate.")
        await d.say("/system save ../pirate")
        assert "is not a name" in d.drawn(d.view.notice)
        await d.say("/system save pirate")
        assert "/system pirate uses it" in " ".join(d.drawn(d.view.notice).split())
        await d.pilot.press("ctrl+n")
        assert not d.view.system_line.display
        complete = d.app.prompt_input.complete
        assert complete("/system pi").words == complete("/system save pi").words == ("pirate",)
        assert complete("/system Talk like a pi") is None
        await d.say("/system pirate")
        assert d.drawn(d.view.system_line).startswith("system: Talk like a pirate.")
    async with driving(system="Talk like a pirate.") as d:
        await d.pilot.press("ctrl+n")
        await d.say("hi")
        assert d.link.last(Generate).messages[0] == Message("system", "Talk like a pirate.")


async def test_words_are_found_in_the_chat_from_its_end():
    async with driving((120, 24)) as d:
        for word in ("lighthouse", "harbour", "Lighthouse", "gull"):
            await d.say(f"about a {word}")
            await d.reply("one\n\n" * 12)
        await d.say("/find lighthouse")
        assert d.view.transcript.chosen_turn().content == "about a Lighthouse"
        assert "message 2 of 2 with 'lighthouse' · n finds the one before" in d.drawn(d.view.notice)
        await d.pilot.press("n")
        await d.settle()
        assert d.view.transcript.chosen_turn().content == "about a lighthouse"
        await d.pilot.press("n")
        await d.settle()
        assert d.view.transcript.chosen_turn().content == "about a Lighthouse", "it goes on from the end"
        d.view.prompt.focus()
        await d.say("/find nowhere")
        assert "no message here has 'nowhere'; /chats nowhere" in " ".join(d.drawn(d.view.notice).split())


async def test_model_and_quit_do_what_they_do_elsewhere():
    async with driving() as d:
        await d.say("/model qwen")
        assert d.link.last(Load).settings["pair"] == "qwen"
        await d.say("/quit")
        assert d.app.return_code == 0


async def test_the_question_of_the_command_line_is_asked_once_a_pair_is_ready():
    async with driving(loaded=False, question="Why is the sky blue?") as d:
        await d.until("waits: Why is the sky blue?")
        await d.hear(hello(), ready())
        assert [g.messages[-1].content for g in d.generates()] == ["Why is the sky blue?"]


async def test_text_stays_readable_in_a_wide_window():
    async with driving((200, 60)) as d:
        await d.say("word " * 100)
        await d.reply("word " * 100)
        assert all(view.size.width <= 100 for view in d.view.transcript.views)
        assert d.view.tree_panel.size.width > 80, "the tree takes the rest"


@pytest.mark.parametrize("width", [120, 60, 40])
async def test_what_a_key_does_stands_in_one_column_of_the_help(width):
    async with driving((width, 24)) as d:
        await d.pilot.press("f1")
        await d.until("stop at")
        rows = [row.replace("│", " ") for row in d.screen().splitlines()]
        first, end = (next(at for at, row in enumerate(rows) if row.split()[:1] == [key]) for key in ("Esc", "Ctrl+C"))
        column = rows[first].index("stop at")
        assert {len(row) - len(row.lstrip()) for row in rows[first + 1 : end]} <= {column}
        assert (
            " ".join(" ".join(row[column:].split()) for row in rows[first:end])
            == "stop at the next round, keep the text"
        )


async def test_help_opens_and_closes():
    async with driving() as d:
        await d.pilot.press("f1")
        await d.pilot.pause()
        assert isinstance(d.app.screen, HelpScreen)
        assert "/retry" in d.screen() + str(help_sections())
        await d.pilot.press("escape")
        assert not isinstance(d.app.screen, HelpScreen)


async def test_the_palette_lists_commands_before_anything_is_typed():
    async with driving() as d:
        await d.pilot.press("ctrl+p")
        await d.until("choose the model to chat with")


async def test_the_palette_says_each_command_once_and_finds_whole_words():
    async with driving() as d:
        await d.pilot.press("ctrl+p", *"tree")
        await d.until("/show")
        lines = [line.strip() for line in d.screen().splitlines()]
        (first,) = (at for at, line in enumerate(lines) if line.startswith("/tree"))
        assert lines[first] == "/tree  hide or show the tree, or choose how it is drawn (Ctrl+T)"
        assert lines[first + 1].startswith("/show")
        assert not any(line.startswith("/pause") for line in lines)
        assert "🔎" not in d.screen()


async def test_the_palette_runs_commands_and_asks_for_what_they_need():
    async with driving() as d:
        await d.pilot.press("ctrl+p", *"/set change")
        await d.until("/set change /set change one setting")
        await d.pilot.press("enter")
        await wait_for(d.pilot, lambda: d.view.prompt.text == "/set ")
