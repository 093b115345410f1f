"""Settings: steps, live changes, refusals, what needs a reload."""

from __future__ import annotations

import pytest
from driving import driving
from fake import LOSS, SETTINGS, hello
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine import events as ev
from specchat.errors import UsageError
from specchat.tui.fields import Field, fields_of
from specchat.tui.screens.settings import SettingsScreen


def field(name: str, **settings: object) -> Field:
    return next(f for f in fields_of(hello(), {**SETTINGS, **settings}) if f.name == name)


def changed(**settings: object) -> ev.Changed:
    return ev.Changed({**SETTINGS, **settings}, LOSS)


def test_the_form_lists_every_setting_once_and_the_options_of_methods_in_use():
    names = [f.name for f in fields_of(hello(), SETTINGS)]
    assert len(names) == len(set(names))
    assert set(names) == {info.name for info in hello().settings} - {"pair"} | {"prompt_lookup.max_ngram"}
    assert "prompt_lookup.max_ngram" not in [f.name for f in fields_of(hello(), {**SETTINGS, "drafter": "draft_model"})]


def test_methods_are_choices_of_their_family():
    assert field("drafter").info.choices == ["prompt_lookup", "draft_model"]
    assert field("policy").info.choices == ["chain", "expansion"]
    assert field("rule").info.choices == ["follow", "typical"]
    assert field("controller").info.choices == ["fixed", "off"]


@given(st.integers(0, 600), st.sampled_from([-1, 1]))
def test_steps_stay_in_range_and_always_move_inside_it(nodes, direction):
    value = field("nodes", nodes=min(nodes, 512)).stepped(direction)
    assert 0 <= value <= 512
    assert (value - min(nodes, 512)) * direction > 0 or value in (0, 512)


def test_steps_are_sensible():
    assert field("temperature", temperature=0.7).stepped(1) == 0.8
    assert field("top_p", top_p=1.0).stepped(-1) == 0.95
    assert field("width", width=1).stepped(-1) == 1
    assert field("nodes", nodes=16).stepped(1) == 20
    assert field("nodes", nodes=16).stepped(-1) == 15
    assert field("max_tokens", max_tokens=512).stepped(1) == 576
    assert field("drafter").stepped(-1) == "draft_model"


def test_typed_values_are_checked_with_words():
    assert field("seed").parse("7") == 7
    with pytest.raises(UsageError, match="1 to 64"):
        field("width").parse("99")


async def test_a_live_change_is_sent_while_a_reply_is_written_and_its_effect_is_shown():
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=4, finish=False)
        await d.pilot.press("f2")
        assert d.app.form.has_focus
        await d.pilot.press("down", "down", "down", "down", "right")
        await d.pilot.pause()
        assert d.link.sent[-1] == ev.Change({"width": 5})
        assert "4" in d.drawn(d.app.form)
        await d.hear(changed(width=5))
        assert "‹ 5 ›" in d.drawn(d.app.form)


async def test_a_refused_change_is_told_beside_the_field_and_the_value_in_force_stays():
    async with driving() as d:
        await d.pilot.press("f2", "right")
        await d.pilot.pause()
        assert d.link.sent[-1] == ev.Change({"drafter": "draft_model"})
        await d.hear(ev.Failed("CombinationError", "draft_model needs a draft model", during="change"))
        drawn = d.drawn(d.app.form)
        assert "‹ prompt_lookup ›" in drawn
        assert "✕ draft_model needs a draft model" in drawn
        await d.pilot.press("right")
        await d.hear(changed())
        assert d.app.chat.settings["drafter"] == "prompt_lookup"


async def test_options_of_methods_are_changed_by_their_full_name():
    async with driving() as d:
        await d.say("/set prompt_lookup.max_ngram 5")
        assert d.link.sent[-1] == ev.Change({"method_options": {"prompt_lookup.max_ngram": 5}})


async def test_a_value_can_be_typed_and_escape_leaves_it():
    async with driving() as d:
        await d.pilot.press("f2", "end", "up", "home", "down", "down", "down", "down", "1", "2", "enter")
        await d.pilot.pause()
        assert d.link.sent[-1] == ev.Change({"width": 12})
        await d.hear(changed(width=12))
        await d.pilot.press("enter", "backspace", "9", "9", "9", "enter")
        await d.pilot.pause()
        assert d.link.sent[-1] == ev.Change({"width": 12})
        assert "1 to 64" in d.drawn(d.app.form)
        await d.pilot.press("enter", "escape", "escape")
        assert d.app.prompt.has_focus


async def test_what_needs_a_reload_is_collected_and_applied_with_load():
    async with driving() as d:
        await d.pilot.press("f2", "end", "up", "up", "right")
        await d.pilot.pause()
        assert not isinstance(d.link.sent[-1], ev.Change)
        await d.pilot.press("end")
        assert "apply and reload (1 changed)" in d.drawn(d.app.form)
        await d.pilot.press("enter")
        await d.pilot.pause()
        assert d.link.sent[-1] == ev.Load({"pair": "smol", "dtype": "float32"})


async def test_settings_lie_over_the_chat_where_there_is_no_room_beside_it():
    async with driving((50, 16)) as d:
        await d.pilot.press("f2")
        await d.pilot.pause()
        assert isinstance(d.app.screen, SettingsScreen)
        await d.pilot.press("right")
        await d.pilot.pause()
        assert d.link.sent[-1] == ev.Change({"drafter": "draft_model"})
        await d.hear(ev.Failed("CombinationError", "needs a draft model", during="change"))
        assert "✕ needs a draft model" in d.drawn(d.app.form)
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.app.prompt.has_focus


async def test_a_lossy_combination_is_said_loudly():
    async with driving() as d:
        d.app.talk.change("rule", "typical")
        await d.hear(ev.Changed({**SETTINGS, "rule": "typical"}, ev.Loss(False, "typical keeps plausible tokens")))
        assert "! lossy" in d.drawn(d.app.stats)
        assert "lossy" in d.drawn(d.app.status)
