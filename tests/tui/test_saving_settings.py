"""Saving settings: which keys go into which file, and what is refused."""

from __future__ import annotations

from driving import Driver, driving
from fake import LOSS, ready
from textual import events

from specchat.config import load_catalog, settings_of, shipped_settings, users_config, users_models
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change
from specchat.engine.protocol.describe import settings_message


async def at_home(d: Driver, **settings: object) -> None:
    """The pair is ready with what it really starts with, and then some settings were changed."""
    start = settings_message(settings_of(load_catalog().pair("smol")))
    await d.hear(ready(settings=start), ev.Changed({**start, **settings}, LOSS))


async def test_saving_writes_what_differs_and_says_exactly_what_and_where():
    async with driving(engine_here=True) as d:
        await at_home(d, width=4, temperature=0.7)
        await d.pilot.press("f2")
        assert "2 unsaved" in str(d.view.form.border_subtitle)
        await d.pilot.press("ctrl+s")
        await d.pilot.pause()
        assert "temperature = 0.7" in users_config().read_text()
        assert "width = 4" in users_models().read_text()
        assert "saved 2 settings" in str(d.view.form.border_subtitle)
        words = " ".join(d.screen().split())
        for word in ("temperature in", "[settings]", "width in", "[pairs.smol.defaults]"):
            assert word in words
        assert settings_of(load_catalog().pair("smol")).width == 4


async def test_the_key_that_saves_is_not_cut_off_in_a_small_window():
    async with driving((80, 24), engine_here=True) as d:
        await at_home(d, width=4, temperature=0.7)
        await d.pilot.press("f2")
        await d.settle()
        assert " 2 unsaved · Ctrl+S saves " in d.screen()


async def test_saving_waits_for_the_engines_answer_and_saves_what_it_took():
    async with driving(engine_here=True) as d:
        await at_home(d)
        start = settings_message(settings_of(load_catalog().pair("smol")))
        await d.pilot.press("f2")
        await d.burst("right", "right", "ctrl+s")
        await d.until("saved once the engine has answered")
        assert not users_config().exists()
        first, second = (round(start["temperature"] + step, 1) for step in (0.1, 0.2))
        assert d.link.last(Change).settings == {"temperature": first}
        await d.hear(ev.Changed({**start, "temperature": first}, LOSS))
        assert not users_config().exists(), "the second step is not answered"
        assert d.link.last(Change).settings == {"temperature": second}
        await d.hear(ev.Changed({**start, "temperature": second}, LOSS))
        assert f"temperature = {second}" in users_config().read_text()


async def test_what_another_pair_kept_from_being_saved_is_said():
    async with driving(engine_here=True) as d:
        await at_home(d)
        await d.pilot.press("f2")
        await d.burst("right", "ctrl+s")
        await d.until("saved once the engine has answered")
        await d.hear(ready())
        await d.until("the settings were not saved")
        assert not users_config().exists()


async def test_a_refused_value_is_not_saved():
    async with driving(engine_here=True) as d:
        await at_home(d, width=4)
        await d.pilot.press("f2")
        await d.burst("right", "ctrl+s")
        await d.hear(ev.Failed("ValueError", "not with this drafter", during="change"))
        assert not users_config().exists()
        assert "width = 4" in users_models().read_text()
        assert "not with this drafter" in d.screen()


async def test_the_keys_that_save_do_so_during_a_search_too():
    async with driving(engine_here=True) as d:
        await at_home(d, temperature=0.7)
        await d.pilot.press("f2", *"temp", "ctrl+s")
        await d.pilot.pause()
        assert "temperature = 0.7" in users_config().read_text()
        alt_s = events.Key("alt+s", "s")  # what a terminal sends: the letter comes with it
        d.view.form.post_message(alt_s)
        await d.pilot.pause()
        assert d.view.form.editor.query == "temp"
        await d.hear(
            ev.Changed({**settings_message(settings_of(load_catalog().pair("smol"))), "temperature": 0.8}, LOSS)
        )
        await d.pilot.press("alt+s")
        await d.pilot.pause()
        assert "temperature = 0.8" in users_models().read_text()


async def test_save_pair_keeps_everything_for_this_pair_alone():
    async with driving(engine_here=True) as d:
        await at_home(d, width=4, temperature=0.7)
        await d.say("/save pair")
        assert not users_config().exists()
        assert "temperature = 0.7" in users_models().read_text()
        await d.say("/save")
        assert "nothing to save" in d.drawn(d.view.notice)


async def test_an_option_back_at_its_default_is_taken_out_of_the_file():
    async with driving(engine_here=True) as d:
        await at_home(d, method_options={"prompt_lookup.max_ngram": 5})
        await d.say("/save")
        assert "max_ngram" in users_models().read_text()
        start = settings_message(shipped_settings(load_catalog().pair("smol")))
        await d.hear(ev.Changed({**start, "method_options": {"prompt_lookup.max_ngram": 3}}, LOSS))
        await d.say("/save")
        assert "max_ngram" not in users_models().read_text()


async def test_a_file_that_cannot_be_read_is_told_and_nothing_is_lost():
    async with driving(engine_here=True) as d:
        await at_home(d, temperature=0.7)
        users_config().parent.mkdir(parents=True)
        users_config().write_text("[settings\n")
        await d.say("/save")
        assert "is not TOML" in d.drawn(d.view.notice)
        assert users_config().read_text() == "[settings\n"


async def test_where_the_engine_runs_elsewhere_nothing_is_saved_here():
    async with driving() as d:
        await d.say("/save")
        assert "runs elsewhere" in d.drawn(d.view.notice)
        assert not users_config().exists()


async def test_a_wrong_word_after_save_is_answered():
    async with driving(engine_here=True) as d:
        await d.say("/save all")
        assert "/save pair" in d.drawn(d.view.notice)
