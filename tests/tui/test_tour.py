"""The tour of the first start, and the engine's log."""

from __future__ import annotations

import sys

import pytest
from driving import driving, wait_for
from fake import hello

from specchat.engine.client.client import Engine
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Message
from specchat.tui.screens.help_and_log import LogScreen
from specchat.tui.widgets.tour import _ABOUT, _CHANGES, _MARKS, TourView
from specchat.tui.widgets.welcome import Welcome


async def test_the_first_start_shows_three_pages_once(tmp_path):
    seen = tmp_path / "state" / "toured"
    async with driving(toured=seen) as d:
        assert "Watch it guess" in d.screen()
        assert "guessed, but the model writes another" in d.screen()
        await d.pilot.press("enter")
        await d.pilot.pause()
        assert "A few keys" in d.screen()
        assert "2 of 3 · Enter goes on · Esc skips · or just type" in d.screen()
        await d.pilot.press("enter")
        await d.pilot.pause()
        assert "Make it yours" in d.screen()
        assert "settings (F2)" in d.screen()
        await d.pilot.press("enter")
        await d.pilot.pause()
        assert d.app.query(Welcome)
    assert seen.exists()
    async with driving(toured=seen) as d:
        assert "Watch it guess" not in d.screen()


async def test_the_tour_tells_the_keys_in_force(tmp_path):
    async with driving(toured=tmp_path / "toured", keys={"help": "f12", "prompt.send": "ctrl+g", "editor": "f9"}) as d:
        assert "Ctrl+G goes on" in d.screen()
        await d.pilot.press("ctrl+g")
        await d.pilot.pause()
        assert "F12" in d.screen()


async def test_escape_skips_it_at_once(tmp_path):
    async with driving(toured=tmp_path / "toured") as d:
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert "Watch it guess" not in d.screen()
        assert d.app.query(Welcome)
        assert d.app.focused is d.view.prompt


async def test_progress_stands_in_one_place_after_the_tour(tmp_path):
    async with driving(toured=tmp_path / "toured", loaded=False) as d:
        await d.hear(hello(), ev.Loading("fetch", "model.gguf", 40_000_000, 98_000_000, 1e6))
        assert "fetching model.gguf" in d.drawn(d.view.notice)
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.screen().count("fetching model.gguf") == 1


async def test_typing_goes_to_the_prompt_and_nothing_of_it_is_lost(tmp_path):
    async with driving(toured=tmp_path / "toured") as d:
        await d.pilot.press(*"hello", "enter")
        await d.pilot.pause()
        assert d.link.last(Generate).messages == [Message("user", "hello")]
        assert "Watch it guess" not in d.screen()
        assert not d.app.query(Welcome)


async def test_the_tour_comes_again_on_request_also_in_a_chat():
    async with driving() as d:
        await d.say("hi")
        await d.reply("fine")
        await d.say("/tour")
        assert "Watch it guess" in d.screen()
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert "Watch it guess" not in d.screen()
        assert "fine" in d.screen()


async def test_a_home_that_cannot_be_written_does_not_keep_the_app_from_starting(tmp_path):
    (tmp_path / "state").write_text("a file where the folder should be")
    async with driving(toured=tmp_path / "state" / "toured") as d:
        assert "Watch it guess" in d.screen()


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=str)
async def test_every_page_is_whole_with_its_title_and_the_way_on(tmp_path, size):
    async with driving(size, toured=tmp_path / "toured") as d:
        for page, title in enumerate(("Watch it guess", "A few keys", "Make it yours"), 1):
            screen = " ".join(d.screen().replace("│", " ").split())
            assert title in screen
            assert f"{page} of 3 · Enter goes on · Esc skips" in screen
            await d.pilot.press("enter")
            await d.pilot.pause()


async def test_in_a_narrow_window_what_keys_do_is_whole_where_there_is_height(tmp_path):
    async with driving((60, 26), toured=tmp_path / "toured") as d:
        await d.pilot.press("enter")
        await d.pilot.pause()
        screen = " ".join(line[:30].strip() for line in d.screen().splitlines())
        assert "A few keys" in screen
        assert "stop at the next round, keep the text" in " ".join(screen.split())


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (20, 5)])
async def test_every_page_fits_small_windows(tmp_path, size):
    async with driving(size, toured=tmp_path / "toured") as d:
        for _ in range(3):
            assert all(strip.cell_length == size[0] for strip in d.app.screen._compositor.render_strips())
            await d.pilot.press("enter")
            await d.pilot.pause()


async def test_the_log_of_the_engine_is_shown_with_its_place(tmp_path):
    log = tmp_path / "engine.log"
    engine = Engine(log, [sys.executable, "-c", "import sys; sys.stderr.write('half a \\x1b[31mwarning\\n'); input()"])
    try:
        async with driving() as d:
            await d.say("/log")
            assert "there is no engine here" in d.drawn(d.view.notice)
            await wait_for(d.pilot, log.read_text)
            d.app.context.session.link, fake = engine, d.app.context.session.link
            await d.say("/log")
            assert isinstance(d.app.screen, LogScreen)
            shown = "".join(d.screen().split())
            assert "half a ␛[31mwarning" in d.screen()
            assert log.name in shown
            await d.pilot.press("escape")
            d.app.context.session.link = fake
    finally:
        engine.close()


async def test_the_log_of_an_engine_that_was_killed_says_how_it_ended(tmp_path):
    engine = Engine(tmp_path / "engine.log", [sys.executable, "-c", "input()"])
    try:
        async with driving() as d:
            d.app.context.session.link, fake = engine, d.app.context.session.link
            await d.say("/log")
            assert "nothing was written" in (text := d.screen())
            assert "the engine stopped" not in text
            assert "wrong" not in text
            await d.pilot.press("escape")
            d.app.context.session.link = fake
            await d.hear(ev.Died(-9, ""))
            d.app.context.session.link = engine
            await d.say("/log")
            assert "the engine stopped (code -9)" in d.screen().split("nothing was written")[1]
            await d.pilot.press("escape")
            d.app.context.session.link = fake
    finally:
        engine.close()


@pytest.mark.parametrize("size", [(60, 20), (40, 16), (60, 12)])
async def test_nothing_of_the_tour_is_lost_where_its_pages_have_no_room(size, tmp_path):
    said = ""
    async with driving(size, toured=tmp_path / "toured") as d:
        while views := d.app.query(TourView):
            said += "".join(d.drawn(views.first()).split())
            await d.pilot.press("enter")
            await d.pilot.pause()
    meanings = (said for *_, said in (*_MARKS, *_CHANGES))
    for words in (*meanings, "stop at the next round, keep the text", "all keys and commands", "with /tour."):
        assert "".join(words.split()) in said


@pytest.mark.parametrize("size", [(40, 12), (40, 11), (30, 11)])
async def test_no_sentence_of_the_tour_is_torn_apart_in_a_small_window(size, tmp_path):
    async with driving(size, toured=tmp_path / "toured") as d:
        pages = []
        while views := d.app.query(TourView):
            pages.append(" ".join(d.drawn(views.first()).split()))
            await d.pilot.press("enter")
            await d.pilot.pause()
    meanings = [said for *_, said in (*_MARKS, *_CHANGES)] if size == (40, 12) else []
    for words in (*_ABOUT, *meanings):
        assert any(words in page for page in pages), words


async def test_a_page_of_the_tour_that_was_parted_is_whole_again_on_a_larger_screen(tmp_path):
    async with driving((60, 20), toured=tmp_path / "toured") as d:
        await d.pilot.press("enter", "enter")
        await d.pilot.pause()
        assert "3/" in d.screen()
        await d.pilot.resize_terminal(120, 40)
        await d.settle()
        assert "2 of 3 · Enter goes on" in d.screen()
        await d.pilot.press("enter")
        await d.pilot.pause()
        assert "Make it yours" in d.screen()
