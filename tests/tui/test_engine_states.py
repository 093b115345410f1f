"""Loading, switching, failing, dying: the chat survives all of it."""

from __future__ import annotations

import os
import sys

import pytest
from driving import driving, wait_for, writing
from fake import hello, ready, rounds_of, stats_of

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Generate, Load
from specchat.errors import EngineError
from specchat.tui.app import SpecchatApp
from specchat.tui.screens.pairs import PairsScreen
from specchat.tui.services.context import AppSetup
from specchat.tui.services.engine_session import EngineSession
from specchat.tui.system import processes as cpu_meter
from specchat.tui.widgets.reply_view import ReplyView

FETCHING = ev.Loading("fetch", "model.safetensors", 143_000_000, 230_000_000, 12_300_000.0)
FAILED = ev.Failed("WeightsError", "model.safetensors: no network", during="load")


async def test_the_app_asks_for_its_pair_with_exactly_the_users_settings():
    async with driving(loaded=False, settings={"pair": "smol", "width": 3}) as d:
        assert d.link.sent == [Load({"pair": "smol", "width": 3})]


async def test_progress_is_shown_while_typing_goes_on():
    async with driving(loaded=False) as d:
        await d.hear(hello(), FETCHING)
        await d.pilot.press("h", "i")
        assert d.view.prompt.text == "hi"
        screen = d.screen()
        assert "fetching model.safetensors" in screen
        assert "12.3 MB/s" in screen
        assert "7 s left" in screen


@pytest.mark.parametrize(
    ("size", "beside_a_chat"),
    [((120, 40), "reading smollm2-135m-instruct: converting"), ((80, 24), "reading: converting")],
)
async def test_what_is_done_once_is_said_in_full_also_beside_a_chat(size, beside_a_chat):
    once = ev.Loading("read", "smollm2-135m-instruct: converting tokenizer · compiling kernels, once", unit="steps")
    async with driving(loaded=False, size=size) as d:
        await d.hear(hello(), once)
        assert "kernels, once" in d.screen()
    async with driving(size=size) as d:
        await d.say("hi")
        await d.reply("fine")
        await d.say("/pair smol-1.7b")
        await d.hear(once)
        assert f"{beside_a_chat} tokenizer · compiling kernels, once" in d.drawn(d.view.notice)


async def test_what_is_read_is_named_whole_where_there_is_room():
    name = "reading smollm2-135m-instruct: configuration"
    async with driving() as d:
        await d.say("hi")
        await d.reply("fine")
        await d.say("/pair smol-1.7b")
        await d.hear(ev.Loading("read", name.removeprefix("reading "), 1_000, 20_000, unit="ms"))
        assert name in d.drawn(d.view.notice)


async def test_escape_cancels_loading_and_the_pair_before_stays_usable():
    async with driving() as d:
        await d.say("hi")
        await d.reply("fine")
        await d.pilot.press("f4")
        await d.pilot.pause()
        assert isinstance(d.app.screen, PairsScreen)
        assert "3.4 GB to fetch" in d.screen()
        await d.pilot.press("down", "enter")
        await d.pilot.pause()
        assert d.link.last(Load).settings["pair"] == "smol-1.7b"
        await d.hear(FETCHING)
        assert "Esc cancels" in d.drawn(d.view.notice)
        await d.pilot.press("escape")
        assert d.link.sent[-1] == Cancel(None)
        await d.hear(ev.Failed("Cancelled", "stopped", during="load"))
        assert "was not loaded" not in d.screen()
        assert not d.view.alert.display
        await d.say("still there?")
        assert len(d.link.last(Generate).messages) == 3


async def test_a_load_that_does_not_stop_cannot_keep_the_user():
    async with driving(loaded=False) as d:
        await d.hear(hello(), FETCHING)
        await d.pilot.press("ctrl+c")
        assert sum(isinstance(c, Cancel) for c in d.link.sent) == 1
        assert "stopped loading smol · Ctrl+C leaves" in d.drawn(d.view.notice)
        assert d.app.is_running
        await d.pilot.press("ctrl+c")
        assert d.app.return_code == 0


async def test_ctrl_c_says_what_it_stopped_below_the_progress_of_another_load():
    async with driving() as d:
        for _ in range(2):  # a second load can be stopped like the first
            await d.app.context.session.load({"pair": "qwen"})
            await d.hear(FETCHING)
            await d.pilot.press("ctrl+c")
            assert d.link.sent[-1] == Cancel(None)
            assert "stopped loading qwen · Ctrl+C leaves" in d.drawn(d.view.notice)
            await d.hear(ev.Failed("Cancelled", "stopped", during="load"))
        assert d.app.is_running


async def test_a_failed_first_load_offers_retry_another_pair_and_the_demo(tmp_path):
    demo = tmp_path / "demo.jsonl"
    demo.write_bytes(b"")
    async with driving(loaded=False, demo=demo) as d:
        await d.hear(hello(), FAILED)
        screen = d.screen()
        assert "no network" in screen
        assert "Try again" in screen
        assert "Another pair" in screen
        assert "demo" in screen
        await d.pilot.press("f5")
        assert sum(isinstance(c, Load) for c in d.link.sent) == 2
        await d.hear(ready())
        assert not d.view.alert.display


async def test_without_a_demo_none_is_offered():
    async with driving(loaded=False) as d:
        await d.hear(hello(), FAILED)
        assert "demo" not in d.screen()


async def test_a_dead_engine_leaves_the_partial_reply_and_comes_back_on_request():
    async with driving() as d:
        await d.say("hi")
        rounds = await d.reply(upto=7, finish=False)
        await d.hear(ev.Died(-9, "Traceback\nMemoryError: no \x1b[31mmemory"))
        said = "".join(p.text for r in rounds[:7] for p in r.pieces)
        assert "MemoryError: no ␛[31mmemory" in d.screen()
        assert "code -9" in d.screen()
        assert d.app.query_one(ReplyView)._figures.text.startswith("the\u00a0engine\u00a0died")
        await d.say("wait for it")
        await d.pilot.press("f5")
        await d.settle()
        assert len(d.links) == 2
        assert d.links[0].closed
        assert d.link.sent == [Load({"pair": "smol"})]
        await d.hear(hello(), ready())
        messages = d.link.last(Generate).messages
        assert [m.content for m in messages] == ["hi", said, "wait for it"]
        assert not d.view.alert.display


async def test_changes_accepted_before_a_crash_are_asked_for_again_after_it():
    async with driving() as d:
        d.app.context.session.change("width", 8)
        await d.hear(ev.Changed({**ready().settings, "width": 8}, ready().loss), ev.Died(1, ""))
        await d.pilot.press("f5")
        await d.settle()
        assert d.link.sent == [Load({"pair": "smol", "width": 8})]


async def test_a_setting_changed_without_an_engine_is_shown_and_holds_at_its_next_start():
    async with driving(engine_here=True) as d:
        await d.hear(ev.Died(1, ""))
        sent = len(d.link.sent)
        await d.say("/drafter prompt_lookup")
        await d.say("/set prompt_lookup.max_ngram 5")
        await d.say("/set width 99")
        assert "1 to 64" in d.drawn(d.view.notice)
        await d.say("/set width 8")
        assert "width = 8 applies once a pair is loaded · F5 loads it" in d.drawn(d.view.notice)
        await d.pilot.press("f2", "slash", *"width")
        assert "‹ 8 ›" in d.drawn(d.view.form)
        await d.pilot.press("enter", "right")
        await d.pilot.pause()
        assert "‹ 9 ›" in d.drawn(d.view.form)
        assert len(d.link.sent) == sent
        await d.pilot.press("escape", "escape", "f5")
        await d.settle()
        kept = {"drafter": "prompt_lookup", "width": 9, "method_options": {"prompt_lookup.max_ngram": 5}}
        assert d.link.sent == [Load({"pair": "smol", **kept})]


@pytest.mark.parametrize("dies", [False, True])
async def test_another_pair_is_loaded_without_what_was_chosen_of_speculation_for_the_one_before(dies):
    async with driving(settings={"pair": "smol", "width": 3, "temperature": 0.7}) as d:
        if dies:
            await d.hear(ev.Died(-9, ""))
        assert d.app.chat.engine.load({"pair": "gemma"}) == Load({"pair": "gemma", "temperature": 0.7})


async def test_a_setting_changed_after_a_load_that_failed_is_part_of_the_next():
    async with driving(loaded=False) as d:
        await d.hear(hello(), FAILED)
        await d.say("/set width 7")
        assert "width = 7 applies once a pair is loaded" in d.drawn(d.view.notice)
        await d.pilot.press("f5")
        await d.settle()
        assert d.link.sent[-1] == Load({"pair": "smol", "width": 7})


async def test_an_engine_that_cannot_be_started_is_told_in_one_line():
    def refuse(_):
        raise EngineError("the engine could not be started: no such file")

    app = SpecchatApp(AppSetup(refuse), settings={})
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_for(pilot, lambda: app.chat_screen.alert.display)
        assert app.chat.engine.phase == "dead"


async def test_a_refused_reply_is_told_and_the_chat_goes_on():
    async with driving() as d:
        await d.say("hi")
        await d.hear(ev.Failed("EngineError", "the prompt is longer than the context", id=1, during="generate"))
        assert "longer than the context" in d.drawn(d.view.notice)
        await d.say("shorter")
        assert d.link.last(Generate).id == 2


async def test_switching_the_pair_stops_the_running_reply_first():
    async with driving() as d:
        await d.say("hi")
        rounds = await d.reply(upto=3, finish=False)
        await d.say("/pair qwen")
        assert d.link.sent[-2:] == [Cancel(1), Load({"pair": "qwen"})]
        await d.hear(ev.Finished(1, "cancelled", "", stats_of(rounds[:3]), 0.4), FETCHING, ready(pair="qwen"))
        assert d.app.chat.engine.phase == "ready"
        assert "qwen" in d.drawn(d.view.status)


async def test_the_pairs_are_asked_for_anew_each_time():
    asked = []

    def pairs():
        asked.append(1)
        return []

    async with driving(pairs=pairs) as d:
        await d.pilot.press("f4")
        await d.pilot.pause()
        await d.pilot.press("escape", "f4")
        await d.pilot.pause()
        assert len(asked) == 2
        assert "no pairs are known" in d.screen()


async def test_nothing_ticks_while_nothing_happens():
    async with driving() as d:
        pump = d.app.context.pump
        assert not (pump._tick_scheduled)
        assert not (pump._busy)
        assert not (pump._waiting)
        ticks = []
        original = pump._tick
        pump._tick = lambda: (ticks.append(1), original())
        await d.pilot.pause(0.3)
        assert ticks == []


async def test_what_the_engine_says_while_the_app_ends_is_left():
    async with driving() as d:
        app, link = d.app, d.link
    assert not app.screen_stack
    link.waiting.append(hello())
    await app.on_specchat_app_tick()
    assert link.waiting


async def test_a_notice_of_the_engine_stands_in_the_chat_whether_a_pair_is_ready_or_not():
    async with driving(loaded=False) as d:
        await d.hear(hello(), ev.Notice("first of them"), ready(), ev.Notice("drafter hydra: it starts with nothing"))
        assert "drafter hydra: it starts with nothing" in d.screen()
        assert "first of them" in d.screen()


async def test_a_draft_model_that_was_let_go_is_seen_in_the_memory_and_answers_no_change():
    async with driving() as d:
        d.app.chat.engine.change({"width": 5})
        await d.hear(ev.Released(["SmolLM2-135M"], 1_000_000_000))
        assert d.app.chat.engine.ready.memory_bytes == 1_000_000_000
        assert len(d.app.chat.engine.changes) == 1
        await d.pilot.press("f3")
        await d.pilot.pause()
        assert "memory   1.0 GB" in d.drawn(d.view.stats)


@pytest.mark.skipif(sys.platform != "linux", reason="processor times of others are read from /proc")
async def test_nothing_of_a_dead_engine_is_left_on_the_screen(monkeypatch):
    monkeypatch.setattr(cpu_meter, "SPAN_S", 0.0)
    monkeypatch.setattr(EngineSession, "engine_pid", os.getpid())
    async with driving() as d:
        await writing(d)
        await d.pilot.press("space")
        await d.settle()
        for round in rounds_of()[4:6]:
            await d.hear(round)
        assert "held" in d.drawn(d.view.notice)
        assert d.view.stats.facts.shares is not None
        await d.hear(ev.Died(-9, "killed"))
        assert "no engine" in d.drawn(d.view.status)
        assert "held" not in d.screen()
        assert d.view.stats.facts.shares is None
