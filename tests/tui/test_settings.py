"""Settings: steps, live changes, refusals, what needs a reload."""

from __future__ import annotations

import pytest
from driving import Driver, driving
from fake import LOSS, SETTINGS, hello, ready, rounds_of
from hypothesis import given
from hypothesis import strategies as st

from specchat.config import users_config
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Generate, Load
from specchat.errors import UsageError
from specchat.tui.state.settings_editor import Form
from specchat.tui.state.settings_fields import Field, fields_of
from specchat.tui.textual_patches.fixed_app import key_of_character
from specchat.tui.widgets.settings_form import SettingsScreen


def field(name: str, **settings: object) -> Field:
    return next(f for f in fields_of(hello(), {**SETTINGS, **settings}) if f.name == name)


def changed(**settings: object) -> ev.Changed:
    return ev.Changed({**SETTINGS, **settings}, LOSS)


def test_the_form_lists_every_setting_once_and_the_options_of_methods_in_use():
    names = [f.name for f in fields_of(hello(), SETTINGS)]
    assert len(names) == len(set(names))
    assert set(names) == {info.name for info in hello().settings} - {"pair"} | {"prompt_lookup.max_ngram"}
    assert "prompt_lookup.max_ngram" not in [f.name for f in fields_of(hello(), {**SETTINGS, "drafter": "draft_model"})]


def test_the_form_begins_with_what_is_used_most_and_ends_with_a_methods_own_numbers():
    fields = fields_of(hello(), SETTINGS)
    first = ["temperature", "top_p", "max_tokens", "drafter", "nodes", "depth", "width"]
    assert [f.name for f in fields[:7]] == first
    assert (fields[-1].name, fields[-1].section) == ("prompt_lookup.max_ngram", "the drafter prompt_lookup")


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
    assert field("temperature").parse("0") == 0.0
    with pytest.raises(UsageError, match="0, or 1e-06 to 10"):
        field("temperature").parse("1e-320")


async def test_a_live_change_is_sent_while_a_reply_is_written_and_its_effect_is_shown():
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=4, finish=False)
        await d.pilot.press("f2")
        assert d.view.form.has_focus
        await d.pilot.press(*["down"] * 6, "right")
        await d.pilot.pause()
        assert d.link.sent[-1] == Change({"width": 5})
        assert "4" in d.drawn(d.view.form)
        await d.hear(changed(width=5))
        assert "‹ 5 ›" in d.drawn(d.view.form)


async def test_each_press_counts_though_the_engine_has_not_answered_and_it_gets_the_last_value():
    def sent(d: Driver) -> list[object]:
        return [command.settings for command in d.link.sent if isinstance(command, Change)]

    async with driving() as d:
        await d.pilot.press("f2", *["down"] * 6)
        await d.burst("right", "right", "right")
        assert "‹ 7 ›" in d.drawn(d.view.form)
        assert sent(d) == [{"width": 5}]
        await d.hear(changed(width=5))
        assert "‹ 7 ›" in d.drawn(d.view.form)
        assert sent(d) == [{"width": 5}, {"width": 7}]
        await d.hear(ev.Failed("UsageError", "7 is too wide", during="change"))
        assert "‹ 5 ›" in d.drawn(d.view.form)
        await d.burst("left", "left", "end", "up")
        option = {"method_options": {"prompt_lookup.max_ngram": 4}}
        await d.burst("right", "right")
        assert sent(d)[2:] == [{"width": 4}, option], "another setting does not wait"
        await d.pilot.press("escape")
        await d.say("a reply is begun with what was chosen")
        assert sent(d)[4:] == [{"width": 3}, {"method_options": {"prompt_lookup.max_ngram": 5}}]
        assert isinstance(d.link.sent[-1], Generate)


async def test_a_refused_change_is_told_beside_the_field_and_the_value_in_force_stays():
    async with driving() as d:
        await d.pilot.press("f2", *["down"] * 3, "right")
        await d.pilot.pause()
        assert d.link.sent[-1] == Change({"drafter": "draft_model"})
        await d.hear(ev.Failed("CombinationError", "draft_model needs a draft model", during="change"))
        drawn = d.drawn(d.view.form)
        assert "‹ prompt_lookup ›" in drawn
        assert "✕ draft_model needs a draft model" in drawn
        await d.pilot.press("right")
        await d.hear(changed())
        assert d.app.chat.engine.settings["drafter"] == "prompt_lookup"


@pytest.mark.parametrize("then", ["another change", "the form is opened again", "a restart"])
async def test_why_a_change_was_refused_goes_once_the_values_in_force_are_shown_again(then):
    async with driving() as d:
        await d.pilot.press("f2", *["down"] * 3, "right")
        await d.hear(ev.Failed("CombinationError", "draft_model needs a draft model", during="change"))
        assert "✕ draft_model needs" in d.drawn(d.view.form)
        match then:
            case "another change":
                await d.hear(changed(width=5))
            case "the form is opened again":
                await d.pilot.press("f2", "f2")
                await d.pilot.pause()
            case _:
                await d.hear(ready())
        drawn = d.drawn(d.view.form)
        assert "prompt_lookup" in drawn
        assert "✕" not in drawn


async def test_while_a_pair_is_loaded_nothing_is_changed_unseen():
    async with driving() as d:
        await d.say("/pair qwen")
        await d.say("/set width 9")
        assert isinstance(d.link.sent[-1], Load)
        assert "once the pair is loaded" in d.drawn(d.view.notice)


async def test_options_of_methods_are_changed_by_their_full_name():
    async with driving() as d:
        await d.say("/set prompt_lookup.max_ngram 5")
        assert d.link.sent[-1] == Change({"method_options": {"prompt_lookup.max_ngram": 5}})


async def test_a_value_can_be_typed_and_escape_leaves_it():
    async with driving() as d:
        await d.pilot.press("f2", "end", "up", "home", *["down"] * 6, "1", "2", "enter")
        await d.pilot.pause()
        assert d.link.sent[-1] == Change({"width": 12})
        await d.hear(changed(width=12))
        await d.pilot.press("enter", "backspace", "9", "9", "9", "enter")
        await d.pilot.pause()
        assert d.link.sent[-1] == Change({"width": 12})
        assert "1 to 64" in d.drawn(d.view.form)
        await d.pilot.press("enter", "escape", "escape")
        assert d.view.prompt.has_focus


async def test_what_needs_a_reload_is_collected_and_applied_with_load():
    async with driving() as d:
        await d.pilot.press("f2", "slash", *"dtype", "enter", "right", "escape")
        await d.pilot.pause()
        assert not isinstance(d.link.sent[-1], Change)
        await d.pilot.press("end")
        assert "apply and reload (1 changed)" in d.drawn(d.view.form)
        await d.pilot.press("enter")
        await d.pilot.pause()
        assert d.link.sent[-1] == Load({"pair": "smol", "dtype": "float32"})


async def test_settings_lie_over_the_chat_where_there_is_no_room_beside_it():
    async with driving((50, 16)) as d:
        await d.pilot.press("f2")
        await d.pilot.pause()
        assert isinstance(d.app.screen, SettingsScreen)
        await d.pilot.press(*["down"] * 3, "right")
        await d.pilot.pause()
        assert d.link.sent[-1] == Change({"drafter": "draft_model"})
        await d.hear(ev.Failed("CombinationError", "needs a draft model", during="change"))
        assert "✕ needs a draft model" in d.drawn(d.view.form)
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.view.prompt.has_focus


async def test_a_lossy_combination_is_said_loudly():
    async with driving() as d:
        d.app.context.session.change("rule", "typical")
        await d.hear(
            ev.Changed({**SETTINGS, "rule": "typical"}, ev.Losslessness(False, "typical keeps plausible tokens"))
        )
        assert "! lossy" in d.drawn(d.view.stats)
        assert "lossy" in d.drawn(d.view.status)


# ------------------------------------------------------------------------------------------- finding, resetting


async def test_the_meaning_range_unit_and_default_of_the_chosen_setting_are_always_there():
    for size in ((120, 40), (80, 24), (50, 16)):
        async with driving(size) as d:
            await d.pilot.press("f2", *["down"] * 6)
            drawn = d.drawn(d.view.form)
            assert "guesses for one place" in drawn
            assert "1 to 64 nodes · default 2" in drawn


async def test_what_differs_from_its_default_is_marked_and_delete_takes_it_back():
    async with driving() as d:
        await d.pilot.press("f2", *["down"] * 6)
        lines = d.drawn(d.view.form).splitlines()
        assert any(line.startswith("• width") for line in lines)
        assert not any(line.startswith("• depth") for line in lines)
        await d.pilot.press("delete")
        await d.pilot.pause()
        assert d.link.sent[-1] == Change({"width": 2})
        await d.hear(changed(width=2))
        assert not any(line.startswith("• width") for line in d.drawn(d.view.form).splitlines())
        sent = len(d.link.sent)
        await d.pilot.press("backspace")
        assert len(d.link.sent) == sent


async def test_a_slash_shows_only_what_fits_and_escape_shows_all_again():
    async with driving() as d:
        await d.pilot.press("f2", "slash", *"penal")
        drawn = d.drawn(d.view.form)
        assert "repetition_penalty" in drawn
        assert "drafter" not in drawn
        assert "/penal" in str(d.view.form.border_title)
        await d.pilot.press("down", "right")
        await d.pilot.pause()
        assert d.link.sent[-1] == Change({"presence_penalty": 0.1})
        await d.pilot.press("escape")
        assert "drafter" in d.drawn(d.view.form) or "frequency_penalty" in d.drawn(d.view.form)
        assert d.view.form.has_focus
        await d.pilot.press("slash", *"qqq")
        assert "nothing fits" in d.drawn(d.view.form)
        await d.pilot.press("enter", "right", "escape", "escape")
        assert d.view.prompt.has_focus


async def test_words_of_the_help_are_found_too():
    async with driving() as d:
        await d.pilot.press("f2", "slash", *"longest reply")
        assert "max_tokens" in d.drawn(d.view.form)


# ------------------------------------------------------------------------------------------------- the effect


async def test_the_effect_of_a_change_is_shown_in_the_form_and_among_the_figures_while_a_reply_runs():
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=20, finish=False)
        await d.pilot.press("f2")
        d.app.context.session.change("width", 5)
        await d.hear(changed(width=5))
        assert "width 4 → 5 · since: 0 rounds" in d.drawn(d.view.form)
        await d.hear(*rounds_of(id=1)[:20])
        assert "20 rounds before, 20 since" in d.drawn(d.view.form)
        await d.pilot.press("f2")
        assert "change" in d.drawn(d.view.stats)
        assert "→" in d.drawn(d.view.stats)


async def test_other_models_begin_without_an_effect():
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=20)
        await d.hear(changed(width=5), ready(pair="qwen"))
        assert d.app.chat.engine.effect.lines(60) == []


# ----------------------------------------------------------------------------------------------------- saving


def test_a_search_ranks_the_name_before_its_beginning_and_both_before_the_description():
    form = Form()
    form.show(fields_of(hello(), SETTINGS))
    for query, first in (("width", "width"), ("temp", "temperature"), ("max tokens", "max_tokens"), ("seed", "seed")):
        form.search(query)
        assert form.current is not None
        assert form.current.name == first
    form.search("token")
    ranks = [field.rank("token") for field in form.matching_fields()]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) > 1, "the search finds names and descriptions"
    form.search("")
    assert [field.name for field in form.matching_fields()] == [field.name for field in form.fields]


@pytest.mark.parametrize("words", ["hello you", "so 2 what", "List three", "just a -+ 3", "Say hi", "kjl m"])
async def test_words_meant_for_the_prompt_search_and_change_no_setting(words):
    async with driving(engine_here=True) as d:
        await d.hear(ev.Changed({**SETTINGS, "width": 5}, LOSS))
        sent = len(d.link.sent)
        await d.pilot.press("f2", *(key_of_character(character) for character in words))
        form = d.view.form.editor
        assert (form.staged, form.typed, form.searching) == ({}, None, True)
        assert form.query == words.lstrip("jk").strip()
        await d.pilot.press(*["backspace"] * (len(words) + 2))
        assert (form.query, form.searching) == ("", True)
        assert len(d.link.sent) == sent
        assert not users_config().exists()
