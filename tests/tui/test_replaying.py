"""A recording plays in the app without any model."""

from __future__ import annotations

import asyncio

import pytest
from driving import driving, wait_for
from fake import hello, ready, rounds_of, started, stats_of
from msgspec.structs import replace

from specchat.engine.client.replay import Player, Recording
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import encode
from specchat.engine.protocol.commands import Generate, Message
from specchat.store.chats import Chats
from specchat.store.database import open_to_read
from specchat.tui.app import SpecchatApp
from specchat.tui.services.context import AppSetup
from specchat.tui.widgets.messages import UserView
from specchat.tui.widgets.reply_view import ReplyView


def recording(step_s: float = 0.001) -> Recording:
    first = rounds_of("one two three four five six seven eight", id=1, step_s=step_s)
    said = "".join(p.text for r in first for p in r.pieces)
    second = rounds_of("nine ten eleven twelve", id=2, step_s=step_s)
    question = Message("user", "count")
    events = [
        ev.Header(ev.PROTOCOL, "0", "x"), hello(), ready(),
        started([question], 1), *first, ev.Finished(1, "end", "", stats_of(first), first[-1].at_s),
        started([question, Message("assistant", said), Message("user", "go on")], 2), *second,
        ev.Finished(2, "end", "", stats_of(second), second[-1].at_s),
    ]  # fmt: skip
    return Recording.parse(b"".join(encode(e) for e in events), "demo.jsonl")


async def test_a_recording_plays_its_chat_to_the_end():
    app = SpecchatApp(AppSetup(lambda wake: Player(recording(), wake, 16.0)), settings={})
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_for(pilot, lambda: len(app.query(ReplyView)) == 2 and not app.chat.running)
        assert [view.text for view in app.query(UserView)] == ["count", "go on"]
        assert len(app.query(ReplyView)) == 2
        assert app.chat.turns[-1].reply.text == "nine ten eleven twelve"
        assert not app.chat_screen.prompt.display
        assert app.chat_screen.replay_bar.display
        await wait_for(pilot, lambda: "at the end" in app.chat_screen.replay_bar.render_line(0).text)
        await pilot.press("escape")
        await wait_for(pilot, lambda: app.return_code is not None)
    app.context.session.link.close()


async def test_space_holds_and_a_dot_steps_one_round():
    app = SpecchatApp(AppSetup(lambda wake: Player(recording(60.0), wake)), settings={})
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_for(pilot, lambda: app.chat.running is not None)
        await pilot.press("space", "full_stop")
        await wait_for(pilot, lambda: app.chat.figures.rounds == 1)
        await pilot.press("full_stop", "greater_than_sign")
        await wait_for(pilot, lambda: app.chat.figures.rounds == 2)
        assert app.context.session.player.paused
        assert app.context.session.player.speed == 2.0
        assert "round 2 of" in app.chat_screen.replay_bar.render_line(0).text
        await asyncio.sleep(0)
    app.context.session.link.close()


async def test_a_recording_held_is_told_depth_by_depth_too():
    app = SpecchatApp(AppSetup(lambda wake: Player(recording(60.0), wake)), settings={})
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_for(pilot, lambda: app.chat.running is not None)
        await pilot.press("space", "full_stop")
        await wait_for(pilot, lambda: app.chat_screen.animation.round is not None or app.chat.figures.rounds == 1)
        await wait_for(pilot, lambda: app.chat.figures.rounds == 1)
        await pilot.press("full_stop")
        await wait_for(pilot, lambda: app.chat_screen.animation.round is not None)
        assert app.chat.figures.rounds == 1
        assert "◌" in app.chat_screen.tree_panel.render_line(0).text
        await wait_for(pilot, lambda: app.chat.figures.rounds == 2)
        assert app.chat_screen.animation.round is None
    app.context.session.link.close()


async def test_the_demo_takes_the_place_of_an_engine_and_gives_it_back(tmp_path):
    demo = tmp_path / "demo.jsonl"
    made = recording(30.0)
    demo.write_bytes(b"".join(encode(e) for e in (made.header, *made.events)))
    async with driving(loaded=False, demo=demo) as d:
        await d.hear(hello(), ev.Failed("WeightsError", "no network", during="load"))
        await d.say("/demo")
        await wait_for(d.pilot, lambda: d.app.context.session.player is not None and d.app.chat.running is not None)
        assert not d.view.alert.display
        await d.pilot.press("escape")
        await wait_for(d.pilot, lambda: d.app.context.session.player is None)
        await d.settle()
        assert len(d.links) == 1, "the engine is the same"
        assert not d.links[0].closed
        assert "no network" in d.screen()
        assert d.view.prompt.has_focus


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_a_recording_is_not_changed_and_its_keys_stay_in_force(tmp_path, monkeypatch, size):
    demo = tmp_path / "demo.jsonl"
    made = recording(30.0)
    demo.write_bytes(b"".join(encode(e) for e in (made.header, *made.events)))
    async with driving(size, demo=demo) as d:
        await d.say("how does it work?")
        await d.reply("like this")
        d.view.prompt.write("unsent")
        await d.view.current_chat.watch_demo()
        await wait_for(d.pilot, lambda: d.app.chat.running is not None and d.view.transcript.has_focus)
        for key in ("e", "E", "r", "left_square_bracket", "right_square_bracket"):
            d.view.notice.say("")
            await d.pilot.press(key)
            await d.settle()
            assert "a recording is being played; Esc leaves it" in d.drawn(d.view.notice), key
            assert d.view.prompt.text == "unsent"
        monkeypatch.setenv("EDITOR", "false")  # it would refuse in other words
        recorded = d.app.chat.turns[0]
        for key in ("ctrl+r", "ctrl+g", "ctrl+n"):
            d.view.notice.say("")
            await d.pilot.press(key)
            await d.settle()
            assert "a recording is being played; Esc leaves it" in d.drawn(d.view.notice), key
            assert (len(d.app.screen_stack), d.app.chat.turns[0]) == (1, recorded), key
        for keys in (["f2", "f2"], ["ctrl+t", "ctrl+t"], ["ctrl+l", "ctrl+l"], ["R"]):
            await d.pilot.press(*keys)
            await d.settle()
            assert not d.view.prompt.has_focus, keys
        assert d.view.transcript.has_focus
        assert len(d.generates()) == 1
        await d.pilot.press("escape")
        await wait_for(d.pilot, lambda: d.app.context.session.player is None)
        await d.settle()
        assert d.view.prompt.has_focus
        assert (d.view.prompt.text, d.app.chat.editing) == ("unsent", None)
        await d.pilot.press("!")
        assert d.view.prompt.text == "unsent!"


async def test_the_status_line_names_the_own_pair_as_soon_as_the_recording_is_left(tmp_path, monkeypatch):
    demo = tmp_path / "demo.jsonl"
    made = recording(30.0)
    events = [replace(event, pair="recorded") if isinstance(event, ev.Ready) else event for event in made.events]
    demo.write_bytes(b"".join(encode(e) for e in (made.header, *events)))
    async with driving(demo=demo) as d:
        await d.view.current_chat.watch_demo()
        await wait_for(d.pilot, lambda: d.app.chat.engine.pair == "recorded")
        await d.settle()
        assert "recorded" in d.drawn(d.view.status)
        seen = []

        async def restore(turns):
            seen.append(d.drawn(d.view.status))

        monkeypatch.setattr(d.view.transcript, "restore", restore)
        await d.pilot.press("escape")
        await wait_for(d.pilot, lambda: seen)
        assert "smol" in seen[0]
        assert "recorded" not in seen[0]


async def test_the_demo_comes_back_to_the_chat_it_left_and_the_engine_is_untouched(tmp_path):
    demo = tmp_path / "demo.jsonl"
    made = recording(30.0)
    demo.write_bytes(b"".join(encode(e) for e in (made.header, *made.events)))
    async with driving(demo=demo, store=tmp_path / "chats.db") as d:
        await d.say("how does it work?")
        await d.reply("like this", upto=1, finish=False)
        chat, link, sent = d.app.chat.id, d.link, list(d.link.sent)
        turns, rounds, pair = list(d.app.chat.turns), list(d.app.chat.rounds), d.app.chat.engine.ready
        await d.say("/demo")
        await wait_for(d.pilot, lambda: d.app.context.session.player is not None and d.app.chat.running is not None)
        assert d.app.chat.turns[0].content != "how does it work?"
        link.put(*rounds_of("like this", id=1)[1:], ev.Finished(1, "end", "", stats_of([]), 9.0))
        await d.pilot.press("escape")
        await wait_for(d.pilot, lambda: d.app.context.session.player is None)
        await d.settle()
        assert (d.links, link.sent, link.closed) == ([link], sent, False), "nothing was cancelled or loaded"
        assert (d.app.chat.id, list(d.app.chat.turns), d.app.chat.engine.ready) == (chat, turns, pair)
        assert d.app.chat.rounds[0] is rounds[0]
        assert d.app.chat.turns[-1].reply.text == "like this", "what was said meanwhile is heard"
        assert "how does it work?" in d.screen()
        await d.say("and then?")
        assert len(link.last(Generate).messages) == 3


async def test_leaving_the_app_in_the_demo_keeps_what_was_not_sent_and_the_reply_so_far(tmp_path):
    demo, store = tmp_path / "demo.jsonl", tmp_path / "chats.db"
    made = recording(30.0)
    demo.write_bytes(b"".join(encode(e) for e in (made.header, *made.events)))
    async with driving(demo=demo, store=store) as d:
        await d.say("how does it work?")
        await d.reply("like this", upto=1, finish=False)
        d.view.prompt.write("not sent yet")
        await d.view.current_chat.watch_demo()
        await wait_for(d.pilot, lambda: d.app.chat.running is not None)
        player = d.app.context.session.link
        d.view.current_chat.close()
        assert d.app.context.session.link is d.link, "the engine is there to be closed"
        assert player._closed
    with open_to_read(store) as connection:
        ((summary,), chats) = Chats(connection).summaries(), Chats(connection)
        assert chats.draft(summary.id) == "not sent yet"
        _, (question, reply) = chats.chat(summary.id)
        assert (question.content, reply.status) == ("how does it work?", "interrupted")
        assert reply.content == d.app.chat.last_reply().text != ""
