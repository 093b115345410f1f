"""Show mode: the tree fills the window with settings that branch, slowly; leaving it puts everything back."""

from __future__ import annotations

import pytest
from driving import Driver, driving
from fake import LOSS, SETTINGS, hello, ready, rounds_of, started

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Generate, Pace
from specchat.tui.text.cells import last_wrapped_lines
from specchat.tui.widgets.settings_form import SettingsScreen

BEFORE = {name: SETTINGS[name] for name in ("drafter", "policy", "controller", "width", "depth", "nodes")}


async def answered(d: Driver) -> dict[str, object]:
    """The engine makes the last change."""
    change = d.link.last(Change).settings
    await d.hear(ev.Changed({**d.app.chat.engine.settings, **change}, LOSS))
    return change


async def test_show_asks_with_settings_that_branch_one_round_a_second():
    async with driving() as d:
        await d.say("/show How does it work?")
        change = await answered(d)
        assert (change["drafter"], change["nodes"], change["width"]) == ("draft_model", 24, 3)
        assert d.link.last(Generate).messages[-1].content == "How does it work?"
        assert d.link.last(Pace).gap_s == 1.0


@pytest.mark.parametrize(("trained", "drafter"), [(["eagle", "hydra"], "eagle"), ([], "token_recycling")])
async def test_a_pair_without_a_draft_model_is_shown_with_its_newest_trained_drafter(trained, drafter):
    async with driving(loaded=False) as d:
        await d.hear(hello(), ready(draft=None, trained=trained))
        await d.say("/show How does it work?")
        assert (await answered(d))["drafter"] == drafter


async def test_a_drafter_that_translates_stays_in_use():
    async with driving() as d:
        await d.hear(ev.Changed({**d.app.chat.engine.settings, "drafter": "cross_vocabulary"}, LOSS))
        await d.say("/show How does it work?")
        change = await answered(d)
        assert "drafter" not in change
        assert change["nodes"] == 24


async def test_no_ratio_is_shown_while_rounds_wait_to_be_looked_at():
    async with driving() as d:
        await d.say("/show How does it work?")
        await answered(d)
        await d.reply(upto=8)
        assert str(d.view.tree_panel.border_subtitle).startswith("τ")
        assert "×" not in str(d.view.tree_panel.border_subtitle)
        await d.pilot.press("ctrl+l")
        await d.settle()
        assert "×" in str(d.view.tree_panel.border_subtitle)


@pytest.mark.parametrize("size", [(120, 40), (40, 12)])
async def test_the_tree_fills_the_window_and_the_reply_is_its_subtitle(size):
    async with driving(size) as d:
        await d.say("/show How does it work?")
        await answered(d)
        await d.reply(upto=8, finish=False)
        views = d.view
        assert views.tree_panel.outer_size.width >= size[0] - 2
        assert views.tree_panel.outer_size.height >= size[1] / 2 - 2
        assert not views.transcript.display
        assert "large" in d.drawn(views.subtitle) or "check" in d.drawn(views.subtitle)
        assert str(views.tree_panel.border_title).startswith("for looking, not for speed")


@pytest.mark.parametrize("key", ["ctrl+l", "escape"])
async def test_leaving_restores_settings_and_speed(key):
    async with driving() as d:
        d.app.context.speed.gap_s = 0.25
        await d.pilot.press("ctrl+l")
        await answered(d)
        assert d.app.context.speed.gap_s == 1.0
        await d.pilot.press(key)
        await d.pilot.pause()
        restored = await answered(d)
        assert {name: d.app.chat.engine.settings[name] for name in BEFORE} == BEFORE
        assert set(restored) <= {*BEFORE, "rule"}
        assert d.app.context.speed.gap_s == 0.25
        assert d.view.transcript.display
        assert "for looking" not in str(d.view.tree_panel.border_title)


async def test_what_the_user_changed_meanwhile_is_kept():
    async with driving() as d:
        await d.pilot.press("ctrl+l")
        await answered(d)
        await d.hear(ev.Changed({**d.app.chat.engine.settings, "width": 7}, LOSS))
        await d.pilot.press("ctrl+l")
        await d.pilot.pause()
        assert "width" not in d.link.last(Change).settings
        assert d.link.last(Change).settings["nodes"] == BEFORE["nodes"]


async def test_an_engine_that_died_meanwhile_starts_with_the_settings_from_before():
    async with driving() as d:
        await d.pilot.press("ctrl+l")
        await answered(d)
        await d.hear(ev.Died(-9, ""))
        await d.pilot.press("ctrl+l")
        await d.pilot.pause()
        asked = d.app.chat.engine.load().settings
        assert {name: asked.get(name, before) for name, before in BEFORE.items()} == BEFORE


async def test_another_pair_keeps_its_own_settings():
    async with driving() as d:
        await d.pilot.press("ctrl+l")
        await answered(d)
        changes = sum(isinstance(command, Change) for command in d.link.sent)
        ready = d.app.chat.engine.ready
        assert ready is not None
        await d.hear(ev.Ready(**{name: getattr(ready, name) for name in ready.__struct_fields__} | {"pair": "qwen"}))
        await d.pilot.press("ctrl+l")
        await d.pilot.pause()
        assert sum(isinstance(command, Change) for command in d.link.sent) == changes


async def test_a_reply_that_runs_goes_on_while_the_window_changes():
    async with driving() as d:
        await d.say("hi")
        generate = d.link.last(Generate)
        rounds = rounds_of(id=generate.id)
        await d.hear(started(generate.messages, generate.id), *rounds[:4])
        await d.pilot.press("ctrl+l")
        await d.hear(*rounds[4:8])
        assert d.link.last(Pace).gap_s == 1.0
        await d.pilot.press("ctrl+l")
        await d.pilot.pause()
        assert d.link.last(Pace).gap_s == 0.0
        assert "".join(text for text, _ in d.app.chat.turns[-1].reply.pieces) == d.app.chat.turns[-1].reply.text


async def test_without_a_pair_the_window_stays_as_it_is():
    async with driving(loaded=False) as d:
        await d.pilot.press("ctrl+l")
        await d.pilot.pause()
        assert "no pair is ready" in d.screen()
        assert not d.view.show_mode.active


def test_the_subtitle_is_the_end_of_the_reply_in_whole_lines():
    lines = last_wrapped_lines([("one two three ", "drafted"), ("four\n", "target"), ("five", "drafted")], 10, 2)
    assert ["".join(text for text, _ in line).strip() for line in lines] == ["three four", "five"]
    assert lines[1] == [("five", "drafted")]
    assert last_wrapped_lines([], 10, 2) == []


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_the_settings_stand_over_the_tree_that_fills_the_window(size):
    async with driving(size) as d:
        await d.pilot.press("ctrl+l")
        await answered(d)
        await d.pilot.press("f2")
        await d.settle()
        assert isinstance(d.app.screen, SettingsScreen)
        assert d.app.screen.form.has_focus
        assert "temperature" in d.screen()
        await d.pilot.press("escape")
        await d.settle()
        assert d.view.prompt.has_focus
        assert d.view.tree_panel.region.height > 0


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_settings_beside_the_chat_close_when_the_tree_fills_the_window(size):
    async with driving(size) as d:
        await d.pilot.press("f2")
        await d.settle()
        assert d.view.settings_form.has_focus
        await d.pilot.press("ctrl+l")
        await answered(d)
        assert d.view.prompt.has_focus
        assert d.view.tree_panel.region.height > size[1] / 2
        await d.pilot.press("ctrl+l")
        await d.settle()
        assert not d.view.settings_form.region.height


async def test_what_is_typed_goes_into_the_prompt_where_the_tree_took_the_place_of_the_chat():
    async with driving() as d:
        await d.say("hi")
        await d.reply()
        await d.pilot.press("tab")
        assert d.view.transcript.has_focus
        await d.pilot.press("ctrl+l")
        await answered(d)
        await d.pilot.press("w", "h", "y")
        assert d.view.prompt.text == "why"


@pytest.mark.parametrize(("key", "why"), [("ctrl+t", "it cannot be hidden"), ("f3", "no figures stand beside it")])
async def test_what_shows_nothing_beside_a_tree_that_fills_the_window_says_so(key, why):
    async with driving() as d:
        await d.pilot.press("ctrl+l")
        await answered(d)
        before = set(d.app.screen.classes)
        await d.pilot.press(key)
        await d.settle()
        assert f"the tree fills the window: {why} · Ctrl+L leaves" in d.drawn(d.view.notice)
        assert set(d.app.screen.classes) == before


def test_line_breaks_of_the_reply_stay_line_breaks_in_the_subtitle():
    lines = last_wrapped_lines([("def f():\n", "target"), ("    return 1\n\n", "drafted"), ("\n", "target")], 40, 3)
    assert lines == [[("def f():", "target")], [("    return 1", "drafted")]]
