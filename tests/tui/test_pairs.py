"""Pairs: found, loaded, refused, added, forgotten."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from driving import PAIRS, Driver, driving
from fake import rounds_of, started, stats_of
from models_without_weights import gguf

from specchat.cli.pair_states import judged, known_pairs
from specchat.config import load_catalog, private_dir, user_settings, users_config, users_models
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Change, Generate, Load
from specchat.errors import WeightsError
from specchat.tui.screens.pairs import AddPairScreen, PairsScreen


async def until(d: Driver, words: str) -> None:
    for _ in range(3_000):
        if words in d.screen():
            return
        await d.pilot.pause(0.02)
    raise AssertionError(f"{words!r} is not on the screen:\n{d.screen()}")


FOUND = """
import sys
if "--add" in sys.argv:
    sys.exit(0)
import json
pair = {"name": "tiny-1b", "target": "tiny:1b", "draft": None, "summary": "tiny:1b, drafts looked up in the text"}
pair |= {"disk_bytes": 700_000_000, "needed_bytes": 900_000_000, "free_bytes": 8_000_000_000, "added": ""}
print(json.dumps({"pairs": [pair], "refused": []}, indent=2))
"""


def finds(d: Driver, script: str = FOUND) -> list[tuple[str, ...]]:
    """Let `models find` be this script; what it was asked."""
    asked: list[tuple[str, ...]] = []

    def command(*words: str) -> list[str]:
        asked.append(words)
        return [sys.executable, "-c", script, *words]

    d.app.context.pairs.command = command
    return asked


async def test_models_of_other_programs_are_listed_and_enter_adds_and_loads_one():
    async with driving(engine_here=True, finds_models=True) as d:
        asked = finds(d)
        await d.pilot.press("f4")
        await until(d, "◇ tiny-1b    found here · 700 MB · fits in memory")
        await d.pilot.press("end")
        assert "Enter adds and loads" in d.screen()
        await d.pilot.press("d")
        assert "tiny-1b was not added" in d.screen()
        await d.pilot.press("enter")
        await until(d, "loading tiny-1b")
        assert asked == [("models", "find", "--output", "json"), ("models", "find", "--add", "tiny-1b")]
        assert d.link.last(Load).settings["pair"] == "tiny-1b"


NO_UTF8 = """import sys; sys.stdout.buffer.write(b'{"pairs": [{"name": "caf\\xe9"}]}')"""


@pytest.mark.parametrize("script", ["print('no')", "print('{\"pairs\": [7]}')", NO_UTF8, "raise SystemExit(1)"])
async def test_a_search_that_fails_finds_nothing(script):
    async with driving(engine_here=True, finds_models=True) as d:
        finds(d, script)
        assert await d.app.context.pairs.find() == []


async def test_the_welcome_page_says_what_is_here_already_where_nothing_is_configured():
    async with driving(engine_here=True, finds_models=True) as d:
        finds(d)
        await d.app.context.pairs.offer_found()
        await until(d, "on this machine already: tiny:1b, drafts looked up in")
        assert "F4 adds and loads it" in d.screen()


async def test_who_has_chosen_a_pair_is_offered_none(tmp_path):
    private_dir(users_config().parent)
    users_config().write_text('[settings]\npair = "smol"\n')
    async with driving(engine_here=True, finds_models=True) as d:
        asked = finds(d)
        await d.app.context.pairs.offer_found()
        assert asked == []


async def test_what_the_hub_says_of_a_size_is_shown_and_a_hub_out_of_reach_is_asked_once():
    asked = []

    def sizes(pair):
        asked.append(pair.name)
        if len(asked) > 1:
            raise WeightsError("the model hub cannot be reached")
        return replace(pair, download_bytes=4_100_000_000, needed_bytes=3_000_000_000, free_bytes=9_000_000_000)

    unknown = [replace(PAIRS[1], name=f"hub-{number}", download_bytes=None) for number in range(4)]
    async with driving(engine_here=True, pairs=[*PAIRS, *unknown], sizes=sizes) as d:
        await d.pilot.press("f4")
        await until(d, "○ hub-0      4.1 GB to fetch · fits in memory")
        await d.pilot.pause(0.1)
        assert asked == ["hub-0", "hub-1"]


async def test_a_reply_being_written_is_stopped_and_its_text_kept_when_the_pair_is_switched():
    async with driving() as d:
        await d.say("hi")
        rounds = rounds_of(id=1)[:5]
        await d.hear(started(d.link.last(Generate).messages), *rounds)
        await d.pilot.press("f4", "end", "enter")
        await d.pilot.pause()
        assert d.link.sent[-2:] == [Cancel(1), Load({"pair": "qwen"})]
        await d.hear(ev.Finished(1, "cancelled", "", stats_of(rounds), 0.4))
        assert d.app.chat.turns[-1].reply.text == "".join(p.text for r in rounds for p in r.pieces)


async def test_a_pair_that_cannot_be_loaded_is_said_loudly_and_the_old_one_stays():
    async with driving() as d:
        d.app.context.session.change("width", 7)
        await d.hear(ev.Changed({**d.app.chat.engine.settings, "width": 7}, d.app.chat.engine.loss))
        await d.say("/pair qwen")
        await d.hear(ev.Failed("TokenizerMismatch", "d cannot draft for t: 3 tokens differ", during="load"))
        assert "✕ qwen was not loaded" in d.drawn(d.view.status)
        words = " ".join(d.screen().split())
        assert "qwen was not loaded: d cannot draft for t" in words
        await d.say("still there?")
        assert d.link.last(Generate).messages[-1].content == "still there?"
        await d.hear(ev.Died(1, ""))
        await d.pilot.press("f5")
        await d.settle()
        assert d.link.sent[0] == Load({"pair": "smol", "width": 7})


async def test_what_is_known_to_fail_is_not_even_tried():
    def judge(pair):
        return replace(pair, trouble="tokens", refusal="3 tokens differ") if pair.name == "qwen" else pair

    async with driving(pairs=PAIRS, judge=judge) as d:
        await d.pilot.press("f4", "end")
        await until(d, "tokenizers differ")
        assert "3 tokens differ" in d.screen()
        await d.pilot.press("enter")
        await d.pilot.pause()
        assert isinstance(d.app.screen, PairsScreen)
        assert "cannot work" in d.screen()
        assert not any(isinstance(command, Load) for command in d.link.sent[1:])


async def test_a_pair_of_ones_own_is_added_after_a_look_and_forgotten_after_a_yes(tmp_path):
    async with driving((120, 40), pairs=known_pairs, judge=judged, engine_here=True) as d:
        target = gguf(tmp_path / "t.gguf")
        await d.pilot.press("f4", "a")
        assert isinstance(d.app.screen, AddPairScreen)
        d.app.screen.query_one("#name").value = "mine"
        d.app.screen.query_one("#target").value = str(tmp_path / "gone.gguf")
        await d.pilot.press("enter")
        await until(d, "does not exist")
        assert not users_models().exists()
        d.app.screen.query_one("#target").value = str(target)
        await d.pilot.press("enter")
        await until(d, "● mine")
        assert load_catalog().pair("mine").yours
        await d.pilot.press("end", "d")
        assert "forget mine?" in d.screen()
        await d.pilot.press("x")
        assert "mine" in load_catalog().pairs
        await d.pilot.press("d", "y")
        await until(d, "mine is forgotten")
        assert "mine" not in load_catalog().pairs
        assert target.exists()


async def test_the_pair_to_begin_with_is_chosen_with_a_key():
    async with driving(pairs=known_pairs, engine_here=True) as d:
        await d.pilot.press("f4")
        assert "at start · in use" in d.screen()
        await d.pilot.press("down", "s")
        assert "begins with qwen-coder from now on" in d.screen()
        assert user_settings() == {"pair": "qwen-coder"}
        assert "at start" in next(line for line in d.screen().splitlines() if "qwen-coder " in line)
        await d.pilot.press("up", "s")
        assert user_settings() == {}


async def test_a_search_narrows_the_list_and_enter_takes_what_is_chosen_in_it():
    async with driving(pairs=known_pairs, engine_here=True) as d:
        await d.pilot.press("f4", "slash", *"coder")
        assert "search: coder" in d.screen()
        assert "gemma " not in d.screen()
        await d.pilot.press("backspace", *"rx")
        assert "no pair has all of these words" in d.screen()
        await d.pilot.press("enter", "escape")
        assert "gemma " in d.screen()
        await d.pilot.press("slash", *"scriptedd", "backspace", "enter")
        await until(d, "getting scripted ready")


async def test_what_came_with_specchat_is_not_asked_about():
    async with driving(pairs=known_pairs, engine_here=True) as d:
        await d.pilot.press("f4", "d")
        assert "came with specchat and stays" in d.screen()


async def test_the_form_begins_with_the_path_and_names_the_pair_after_it(tmp_path):
    async with driving(pairs=known_pairs, engine_here=True) as d:
        await d.pilot.press("f4", "a")
        assert d.app.focused is d.app.screen.query_one("#target")
        d.app.screen.query_one("#target").value = str(gguf(tmp_path / "My Model.gguf"))
        await d.pilot.press("enter")
        assert d.app.focused.value == "my-model"
        await d.pilot.press("enter")
        await until(d, "● my-model")


async def test_escape_leaves_the_form_without_a_pair():
    async with driving(engine_here=True) as d:
        await d.pilot.press("f4", "a", "escape", "escape")
        await d.pilot.pause()
        assert len(d.app.screen_stack) == 1


async def test_for_an_engine_elsewhere_nothing_is_fetched_or_added_here():
    async with driving(engine_here=False) as d:
        await d.pilot.press("f4", "a")
        assert "the engine runs elsewhere" in d.screen()
        await d.pilot.press("down", "enter")
        await d.pilot.pause()
        assert d.link.last(Load).settings["pair"] == "smol-1.7b"


BROKEN = ["settings = 3", "[[pairs]]", "\x00", "a." * 2000 + "a = 1", "[pairs.smol]\ndepth = 3"]


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:8].encode().hex())
async def test_a_file_of_the_user_that_broke_meanwhile_is_a_notice(text):
    async with driving(pairs=known_pairs, judge=judged, engine_here=True) as d:
        for file in (users_config(), users_models()):
            private_dir(file.parent)
            file.write_text(text)
        for typed in ("/pair s", "/set pair s"):
            d.view.prompt.text = ""
            await d.pilot.press(*({" ": "space", "/": "slash"}.get(letter, letter) for letter in typed))
            await d.pilot.press("tab", "escape")
        d.view.prompt.text = ""
        for command in ("/pair smol", "/set pair smol", "/save", "/save pair"):
            await d.say(command)
        assert "models.toml" in d.screen()
        await d.pilot.press("f4")
        await until(d, "models.toml")
        await d.pilot.press("x", "enter", "escape")
        assert d.app.is_running


async def test_letters_that_follow_the_search_key_at_once_are_searched_for():
    async with driving() as d:
        await d.pilot.press("f4")
        await d.until("smol-1.7b")
        await d.burst("slash", *"qwen")
        assert "smol-1.7b" not in d.screen()
        assert "qwen" in d.screen()
        await d.pilot.press("escape", "escape", "f2")
        await d.burst("slash", *"depth", "enter", "right")
        assert d.link.last(Change).settings == {"depth": 7}
