"""Other programs use the app's engine: by turns with the chat, watched, and without changing it."""

from __future__ import annotations

from typing import Any

import pytest
from driving import Driver, driving, wait_for
from fake import LOSS, SETTINGS, ready, rounds_of, started, stats_of

from specchat.engine.client.client import GuestLink
from specchat.engine.protocol import commands as co
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Message
from specchat.errors import EngineError

QUESTION = [Message("user", "Why is the sky blue?")]


async def guest_of(d: Driver) -> GuestLink:
    guest = d.app.context.served.connect(lambda: None)
    guest.send(co.Load())
    await d.settle()
    return guest


async def ask(d: Driver, guest: GuestLink, id: int = 1, **settings: Any) -> None:
    d.app.context.served.client = "curl/8.5"
    guest.send(co.Generate(id, QUESTION, 7, own={**SETTINGS, **settings}))
    await d.settle()


async def write(d: Driver, rounds: int = 6, *, finish: bool = True) -> None:
    """The engine writes the reply that was asked for last."""
    id = d.generates()[-1].id
    made = rounds_of(id=id)[:rounds]
    await d.hear(started(QUESTION, id), *made)
    if finish:
        await d.hear(ev.Finished(id, "end", "", stats_of(made), 9.0))


async def test_a_program_gets_its_reply_under_its_own_id_and_with_its_own_settings():
    async with driving() as d:
        guest = await guest_of(d)
        assert isinstance(guest.drain()[-1], ev.Ready)
        await ask(d, guest, 5, temperature=0.25)
        asked = d.generates()[-1]
        assert asked.apart == {"temperature": 0.25}
        assert (asked.messages, asked.seed) == (QUESTION, 7)
        await write(d)
        heard = guest.drain()
        assert {event.id for event in heard if isinstance(event, ev.RoundDone)} == {5}
        assert heard[-1].id == 5
        assert d.app.chat.engine.settings == SETTINGS
        assert not d.app.chat.turns


async def test_settings_as_in_the_app_are_asked_for_as_the_chat_asks():
    async with driving() as d:
        guest = await guest_of(d)
        await ask(d, guest)
        assert d.generates()[-1].apart is None


async def test_its_tree_is_drawn_and_a_line_says_who_asks():
    async with driving() as d:
        d.app.chat.background.serving = "http://127.0.0.1:8000/v1"
        guest = await guest_of(d)
        d.app.redraw()
        await d.until("other programs may ask at http://127.0.0.1:8000/v1")
        await ask(d, guest)
        await write(d, finish=False)
        screen = await d.until("curl/8.5 asks: Why is the sky blue?")
        assert "served · kept" in screen
        assert "●" in d.drawn(d.view.tree_panel)
        await d.hear(ev.Finished(d.generates()[-1].id, "end", "", stats_of(rounds_of()[:6]), 9.0))
        await d.until("curl/8.5 asked: Why is the sky blue?")
        await d.say("And the sea?")
        assert "served ·" not in d.screen()
        assert "curl/8.5" not in d.screen()


async def test_what_the_user_sends_meanwhile_comes_next_and_a_program_waits_for_it():
    async with driving() as d:
        guest = await guest_of(d)
        await ask(d, guest, 1)
        await d.say("mine")
        assert [command.messages for command in d.generates()] == [QUESTION]
        guest.send(co.Generate(2, QUESTION))
        await write(d)
        assert [command.messages for command in d.generates()] == [QUESTION, [Message("user", "mine")]]
        assert d.app.chat.running is not None
        await d.reply("yours")
        await d.settle()
        assert [command.messages for command in d.generates()] == [QUESTION, [Message("user", "mine")], QUESTION]
        assert d.app.chat.turns[-1].reply.text == "yours"


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_a_line_says_that_a_program_waits_while_the_chat_writes_and_no_longer(size):
    async with driving(size) as d:
        d.app.chat.background.serving = "http://127.0.0.1:8000/v1"
        guest = await guest_of(d)
        await d.say("mine")
        await ask(d, guest, 4)
        await d.until("⇄ curl/8.5 waits until the engine is free")
        await d.reply("yours")
        await write(d, finish=False)
        assert "waits until" not in await d.until("curl/8.5 asks: Why is the sky blue?")
        await d.hear(ev.Finished(d.generates()[-1].id, "end", "", stats_of(rounds_of()[:6]), 9.0))
        await d.say("And the sea?")
        guest.send(co.Generate(5, QUESTION))
        await d.until("curl/8.5 waits")
        guest.send(co.Cancel(5))
        await d.until("other programs may ask at")


async def test_escape_stops_it_and_the_program_is_told():
    async with driving() as d:
        guest = await guest_of(d)
        await ask(d, guest, 3)
        await d.pilot.press("escape")
        assert d.link.last(co.Cancel).id == d.generates()[-1].id
        await d.hear(ev.Finished(d.generates()[-1].id, "cancelled", "", stats_of(rounds_of()[:1]), 1.0))
        failed = guest.drain()[-1]
        assert isinstance(failed, ev.Failed)
        assert (failed.id, failed.message) == (3, "the reply was stopped in the app")


async def test_a_program_that_goes_away_stops_its_reply_and_the_next_one_hears_nothing_of_it():
    async with driving() as d:
        guest = await guest_of(d)
        await ask(d, guest, 1)
        old = d.generates()[-1].id
        guest.close()
        other = await guest_of(d)
        assert d.link.last(co.Cancel).id == old
        other.drain()
        await d.hear(ev.Finished(old, "cancelled", "", stats_of(rounds_of()[:1]), 1.0))
        assert other.drain() == []
        assert d.app.chat.can_generate


async def test_one_that_is_cancelled_while_it_waits_is_never_asked_for():
    async with driving() as d:
        guest = await guest_of(d)
        await d.say("mine")
        await ask(d, guest, 4)
        guest.send(co.Cancel(4))
        await d.settle()
        assert isinstance(guest.drain()[-1], ev.Failed)
        await d.reply("done")
        assert len(d.generates()) == 1


async def test_settings_and_pairs_that_the_user_changes_reach_the_program():
    async with driving() as d:
        guest = await guest_of(d)
        guest.drain()
        await d.hear(ev.Changed({**SETTINGS, "temperature": 1.5}, LOSS))
        assert [event.settings["temperature"] for event in guest.drain()] == [1.5]
        await d.hear(ready(pair="other"))
        assert [event.pair for event in guest.drain()] == ["other"]


async def test_an_engine_that_dies_is_told_and_requests_are_refused_until_it_is_back():
    async with driving() as d:
        guest = await guest_of(d)
        await ask(d, guest)
        await d.hear(ev.Died(-9, "MemoryError"))
        assert isinstance(guest.drain()[-1], ev.Died)
        assert not d.app.chat.writing
        with pytest.raises(EngineError, match="no engine"):
            d.app.context.served.connect(lambda: None)
        await d.pilot.press("f5")
        await wait_for(d.pilot, lambda: len(d.links) == 2)
        guest = await guest_of(d)
        assert guest.drain() == []
        await d.hear(ready())
        assert isinstance(guest.drain()[-1], ev.Ready)


async def test_races_wait_for_a_served_reply_and_it_for_them():
    async with driving() as d:
        guest = await guest_of(d)
        await ask(d, guest)
        await d.say("/race Who wins?")
        assert "a reply is being written" in d.screen()
        await write(d)
        await d.say("/race Who wins?")
        asked = len(d.generates())
        guest.send(co.Generate(2, QUESTION))
        await d.settle()
        assert len(d.generates()) == asked


class FakeServer:
    address, key = "http://127.0.0.1:8123", "a-key"

    def __init__(self, port, connect, asked, ended) -> None:
        self.port, self.ended, self.stopped = port, ended, False

    def stop(self) -> None:
        self.stopped = True


async def test_the_command_starts_and_stops_the_server():
    servers: list[FakeServer] = []

    def start(*given) -> FakeServer:
        servers.append(FakeServer(*given))
        return servers[-1]

    async with driving(server=start) as d:
        await d.say("/serve 8123")
        await d.until("a-key; /serve off ends that")
        await d.say("/serve")
        assert [server.port for server in servers] == [8123]
        await d.say("/demo")
        assert d.app.context.session.player is None
        await d.say("/serve off")
        await d.until("other programs can no longer use the engine")
        assert servers[0].stopped
        assert not d.app.chat.background.serving
        await d.say("/serve")
        servers[1].ended("the port is gone")
        await d.until("can no longer use the engine: the port is gone")


async def test_a_server_that_is_wanted_from_the_start_begins_with_the_first_pair_that_is_ready():
    servers: list[FakeServer] = []

    def start(*given) -> FakeServer:
        servers.append(FakeServer(*given))
        return servers[-1]

    async with driving(loaded=False, server=start, serve_on=8123) as d:
        assert not servers
        await d.hear(ready())
        await d.until("a-key; /serve off ends that")
        assert [server.port for server in servers] == [8123]
        await d.say("/serve off")
        await d.hear(ready())
        assert len(servers) == 1, "once it was ended it stays so"


@pytest.mark.parametrize(
    ("argument", "why"), [("x", "a port from 1 to 65535"), ("0", "a port from 1 to 65535"), ("", "no engine")]
)
async def test_what_cannot_be_served_is_refused_in_one_line(argument, why):
    async with driving() as d:
        await d.say(f"/serve {argument}".strip())
        await d.until(why)


async def test_without_a_pair_nothing_is_served():
    async with driving(loaded=False, server=FakeServer) as d:
        await d.say("/serve")
        await d.until("no pair is ready")
