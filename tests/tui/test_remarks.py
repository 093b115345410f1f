"""Remarks above the prompt are shown whole where there is room: their ends say what to do."""

from __future__ import annotations

import pytest
from driving import driving
from fake import hello, ready

from specchat.engine.protocol import events as ev

REFUSAL = (
    "drafter 'draft_model' needs a draft model, and pair 'smol' has none; nearest that works: drafter 'prompt_lookup', "
    "or a pair that has a draft model, such as 'smol-1.7b'"
)


@pytest.mark.parametrize(("size", "lines"), [((240, 40), 1), ((120, 40), 2), ((80, 24), 3)])
async def test_a_refusal_is_shown_to_its_end(size, lines):
    async with driving(size, loaded=False) as d:
        await d.hear(hello(), ready(draft=None))
        prompt, notice = d.view.prompt, d.view.notice
        await d.say("/drafter draft_model")
        await d.hear(ev.Failed("UsageError", REFUSAL, during="change"))
        assert " ".join(d.drawn(notice).split()) == REFUSAL
        assert notice.size.height == lines
        assert prompt.region.bottom <= size[1]
        await d.pilot.press("x")
        await d.settle()
        assert not notice.display


async def test_lines_of_a_remark_follow_its_text_and_the_width():
    async with driving((120, 40)) as d:
        notice = d.view.notice
        for text, lines in (("short", 1), (REFUSAL, 2), ("short again", 1)):
            notice.say(text)
            await d.settle()
            assert (notice.size.height, " ".join(d.drawn(notice).split())) == (lines, text)
        notice.say(REFUSAL)
        await d.pilot.resize_terminal(60, 40)
        await d.settle()
        assert notice.size.height == 4


@pytest.mark.parametrize(("size", "lines"), [((80, 24), 5), ((80, 18), 3), ((60, 12), 2), ((40, 7), 1)])
async def test_the_end_of_a_remark_that_has_no_room_is_cut(size, lines):
    async with driving(size) as d:
        d.view.notice.say("word " * 100 + "end", "warn")
        await d.settle()
        assert d.view.notice.size.height == lines
        assert d.drawn(d.view.notice).endswith("…")
        assert d.view.prompt.region.bottom <= size[1]


async def test_progress_stays_in_one_line():
    async with driving((80, 24)) as d:
        await d.say("hi")
        await d.reply("hello")
        d.view.notice.say(REFUSAL)
        await d.settle()
        await d.say("/pair smol")
        await d.hear(ev.Loading("fetch", "a-very-long-name-of-a-file.safetensors", 40_000_000, 100_000_000, 1e7))
        assert "40 %" in d.drawn(d.view.notice)
        assert d.view.notice.size.height == 1
