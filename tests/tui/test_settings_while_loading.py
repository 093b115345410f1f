"""Before a pair is ready, the settings are those it will have, and say so; or they are yet to come."""

from __future__ import annotations

from driving import Driver, driving
from fake import SETTINGS, hello, ready

from specchat.config import load_catalog, settings_of
from specchat.engine.protocol import events as ev


async def test_while_a_pair_is_loaded_its_own_settings_are_shown():
    async with driving(loaded=False, engine_here=True, settings={"pair": "smol", "width": 5}) as d:
        assert "the settings come with the pair" in await opened_form(d)
        await d.hear(hello())
        form, smol = d.view.form, settings_of(load_catalog().pair("smol"), {"width": 5})
        shown = {field.name: field.value for field in d.view.side_panel.fields()}
        assert {name: shown[name] for name in ("drafter", "nodes", "temperature", "width")} == {
            "drafter": smol.drafter, "nodes": smol.nodes, "temperature": smol.temperature, "width": 5,
        }  # fmt: skip
        assert smol.drafter in d.drawn(form)
        assert str(form.border_subtitle) == "loading smol"
        await d.hear(ready())
        assert "prompt_lookup" in d.drawn(form)
        assert "loading" not in str(form.border_subtitle)


async def test_after_a_load_that_failed_the_settings_are_those_of_the_next_try():
    async with driving(loaded=False, engine_here=True, settings={"pair": "smol"}) as d:
        await d.hear(hello(), ev.Failed("WeightsError", "no network", during="load"))
        await opened_form(d)
        assert str(d.view.form.border_subtitle) == "smol is not loaded"
        assert settings_of(load_catalog().pair("smol")).drafter in d.drawn(d.view.form)


async def test_while_another_pair_is_loaded_the_settings_are_those_it_will_have():
    async with driving(engine_here=True) as d:
        await d.hear(ready(settings={**SETTINGS, "width": 3}))
        await opened_form(d)
        form, fields = d.view.form, d.view.side_panel.fields
        await d.app.context.session.load({"pair": "qwen-coder"})
        await d.pilot.pause()
        assert str(form.border_subtitle) == "loading qwen-coder"
        coder = settings_of(load_catalog().pair("qwen-coder"))
        assert {f.name: f.value for f in fields()}["drafter"] == coder.drafter
        await d.hear(ev.Failed("Cancelled", "stopped", during="load"))
        assert {f.name: f.value for f in fields()}["width"] == 3
        assert "qwen-coder" not in str(form.border_subtitle)


async def test_settings_that_only_a_far_engine_knows_are_not_made_up():
    async with driving(loaded=False, engine_here=False) as d:
        await d.hear(hello())
        await d.say("/drafter")
        assert "drafter comes with the pair; known: prompt_lookup, draft_model" in d.drawn(d.view.notice)
        assert "the settings come with the pair" in await opened_form(d)
        await d.hear(ready())
        assert "prompt_lookup" in d.drawn(d.view.form)


async def opened_form(d: Driver) -> str:
    """What the settings show when they are opened."""
    await d.pilot.press("f2")
    await d.pilot.pause()
    return d.drawn(d.view.form)
