"""Several controllers at once: named, typed in the form, and refused where they do not go together."""

from __future__ import annotations

import re

import pytest
from driving import driving
from fake import LOSS, SETTINGS, hello, ready
from msgspec.structs import replace

from specchat.controllers import choose_controllers
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change
from specchat.engine.protocol.events import MethodInfo, OptionInfo
from specchat.errors import UsageError
from specchat.settings import Settings


def with_controllers() -> ev.Hello:
    options = [OptionInfo("margin", "float", 0.0, "how much more it must pay", "", 0.0, 1.0)]
    more = [
        MethodInfo("controller", "goodput", "", "", "yes", options),
        MethodInfo("controller", "memory", "", "", "yes"),
    ]
    return replace(hello(), methods=[*hello().methods, *more])


@pytest.mark.parametrize("said", ["/controller goodput+memory", "/set controller goodput + memory"])
async def test_several_controllers_are_chosen_by_their_names(said):
    async with driving(loaded=False) as d:
        await d.hear(with_controllers(), ready())
        await d.say(said)
        assert d.link.sent[-1] == Change({"controller": "goodput+memory"})
        await d.hear(ev.Changed({**SETTINGS, "controller": "goodput+memory"}, LOSS))
        await d.say("/set goodput.margin 0.5")
        assert d.link.sent[-1] == Change({"method_options": {"goodput.margin": 0.5}})


async def test_a_controller_is_completed_behind_another_one_and_not_named_twice():
    async with driving(loaded=False) as d:
        await d.hear(with_controllers(), ready())
        complete = d.app.prompt_input.complete
        for line in ("/controller goodput+me", "/set controller goodput+me"):
            found = complete(line)
            assert (found.words, line[: found.start]) == (("memory",), line[:-2])
        assert "goodput" not in complete("/controller goodput+").words
        assert complete("/drafter prompt_lookup+dr") is None, "a drafter is not joined so"


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("goodput+memry", "no controller is called 'memry'; did you mean 'memory'?"),
        ("goodput+goodput", "twice"),
        ("off+goodput", "'off' never speculates"),
    ],
)
async def test_controllers_that_do_not_go_together_are_refused_as_on_the_command_line(named, why):
    with pytest.raises(UsageError, match=re.escape(why)):
        choose_controllers(Settings(controller=named))
    async with driving(loaded=False) as d:
        await d.hear(with_controllers(), ready())
        sent = len(d.link.sent)
        await d.say(f"/controller {named}")
        assert why in d.drawn(d.view.notice)
        assert len(d.link.sent) == sent


async def test_several_controllers_can_be_typed_in_the_form_and_arrows_leave_them():
    async with driving(loaded=False) as d:
        await d.hear(with_controllers(), ready())
        await d.pilot.press("f2", "slash", *"controller", "enter")
        assert "Enter type" in d.drawn(d.view.form)
        await d.pilot.press("enter", *["backspace"] * len("fixed"), *"goodput", "plus", *"memory", "enter")
        await d.pilot.pause()
        assert d.link.sent[-1] == Change({"controller": "goodput+memory"})
        await d.hear(ev.Changed({**SETTINGS, "controller": "goodput+memory"}, LOSS))
        assert "‹ goodput+memory ›" in d.drawn(d.view.form)
        assert "goodput.margin" in [field.name for field in d.view.side_panel.fields()]
        await d.pilot.press("left")
        await d.pilot.pause()
        assert d.link.sent[-1] == Change({"controller": "memory"})
