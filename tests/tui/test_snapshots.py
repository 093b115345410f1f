"""How the screens look. Nothing on them depends on the clock or the version."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from driving import PAIRS, Driver, app_with, connected, wait_for
from fake import LOSS, SETTINGS, FakeLink, hello, ready, rounds_of, started, stats_of
from test_chats_screen import fill
from test_token_tree import big_round

from specchat.config.directories import shipped_file
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate
from specchat.tui.app import SpecchatApp
from specchat.tui.screens.chats import ChatsScreen
from specchat.tui.services.chat_archive import ChatArchive
from specchat.tui.state.pair_list import PairInfo

SHOWN_PAIRS = [
    *PAIRS,
    PairInfo("twins", "SmolLM2-360M", "Qwen3-0.6B", disk_bytes=1_100_000_000, trouble="tokens",
             refusal="Qwen3-0.6B cannot draft for SmolLM2-360M: 104217 tokens of their tables differ, such as '!'"),
    PairInfo("giant", "Llama-3.1-70B", None, disk_bytes=40_000_000_000, needed_bytes=50_000_000_000,
             free_bytes=9_000_000_000, yours=True),
]  # fmt: skip


def app_of(links: list[FakeLink], **options) -> SpecchatApp:
    def connect(wake):
        links.append(FakeLink(wake))
        return links[-1]

    options = {"engine_here": False} | options
    app = app_with(connect, settings={"pair": "smol"}, pairs=SHOWN_PAIRS, **options)
    app.animation_level = "none"
    return app


async def settle(pilot, link: FakeLink) -> None:
    await Driver(pilot.app, pilot, [link]).settle()


async def chat(pilot, links: list[FakeLink], upto: int | None, finish: bool) -> None:
    await connected(pilot, links)
    links[0].put(hello(), ready())
    await settle(pilot, links[0])
    pilot.app.chat_screen.prompt.write("How does it work?")
    await pilot.press("enter")
    rounds = rounds_of()
    links[0].put(started(links[0].last(Generate).messages))
    for round in rounds[:upto]:
        links[0].put(round)
    if finish:
        links[0].put(ev.Finished(1, "end", "", stats_of(rounds), 9.0))
    await settle(pilot, links[0])


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_reply_being_written(snap_compare, size):
    links: list[FakeLink] = []
    assert snap_compare(app_of(links), terminal_size=size, run_before=lambda pilot: chat(pilot, links, 26, False))


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_tree_over_the_whole_window(snap_compare, size):
    links: list[FakeLink] = []

    async def shown(pilot):
        await chat(pilot, links, 12, False)
        await pilot.press("ctrl+l")
        await settle(pilot, links[0])
        links[0].put(rounds_of()[12])
        await settle(pilot, links[0])

    assert snap_compare(app_of(links), terminal_size=size, run_before=shown)


def test_a_reply_that_is_complete(snap_compare):
    links: list[FakeLink] = []
    assert snap_compare(app_of(links), terminal_size=(120, 40), run_before=lambda pilot: chat(pilot, links, None, True))


def test_settings_beside_a_reply(snap_compare):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await chat(pilot, links, 26, False)
        await pilot.press("f2", "down", "down", "down", "down")
        await pilot.pause()

    assert snap_compare(app_of(links), terminal_size=(120, 40), run_before=before)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_choosing_a_pair(snap_compare, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await connected(pilot, links)
        links[0].put(hello(), ready())
        await settle(pilot, links[0])
        pilot.app.context.pairs.fetching["smol-1.7b"] = ev.Loading("fetch", "m", 143_000_000, 230_000_000, 12_300_000.0)
        await pilot.press("f4", "down", "down", "down")
        await pilot.pause()

    assert snap_compare(app_of(links), terminal_size=size, run_before=before)


def test_adding_a_pair(snap_compare):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await connected(pilot, links)
        links[0].put(hello(), ready())
        await settle(pilot, links[0])
        pilot.app.context.pairs.here = True
        await pilot.press("f4", "a", *"owner/model", "enter")
        pilot.app.screen.set_focus(None)
        await pilot.pause()

    assert snap_compare(app_of(links), terminal_size=(80, 24), run_before=before)


@pytest.mark.parametrize("size", [(80, 24), (50, 16)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_settings_where_there_is_little_room(snap_compare, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await chat(pilot, links, 26, False)
        await pilot.press("f2", *["down"] * 5)
        links[0].put(ev.Changed({**SETTINGS, "width": 5}, LOSS))
        links[0].put(*rounds_of()[:20])
        await settle(pilot, links[0])

    assert snap_compare(app_of(links), terminal_size=size, run_before=before)


def test_the_first_start_while_weights_are_fetched(snap_compare):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await connected(pilot, links)
        links[0].put(hello(), ev.Loading("fetch", "model.safetensors", 143_000_000, 230_000_000, 12_300_000.0))
        await settle(pilot, links[0])

    assert snap_compare(app_of(links), terminal_size=(80, 24), run_before=before)


def test_an_engine_that_died(snap_compare):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await chat(pilot, links, 26, False)
        links[0].put(ev.Died(-9, "MemoryError"))
        await settle(pilot, links[0])

    assert snap_compare(app_of(links), terminal_size=(80, 24), run_before=before)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_held_tree_being_walked(snap_compare, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await chat(pilot, links, 24, False)
        await pilot.press("tab", "space", "tab", "right", "right", "down")
        await settle(pilot, links[0])

    assert snap_compare(app_of(links), terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_round_in_slow_motion(snap_compare, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await chat(pilot, links, 23, False)
        pilot.app.animation_level = "full"
        await pilot.press("tab", "full_stop")
        links[0].put(rounds_of()[23])
        await wait_for(pilot, lambda: pilot.app.chat_screen.animation.round is not None)
        pilot.app.chat_screen.animation.timer.pause()
        while pilot.app.chat_screen.animation.depth < 2:
            pilot.app.chat_screen.animation.advance()
        await pilot.pause()

    assert snap_compare(app_of(links), terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_tree_of_many_nodes(snap_compare, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await chat(pilot, links, 12, False)
        links[0].put(big_round(120))
        await settle(pilot, links[0])

    assert snap_compare(app_of(links), terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_chats_that_were_kept(snap_compare, tmp_path, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        fill(tmp_path / "chats.db")
        app = pilot.app
        archive = ChatArchive(app, tmp_path / "chats.db")
        archive.start()
        await pilot.pause()
        now = datetime(2026, 1, 31, 12, tzinfo=UTC)
        await app.push_screen(ChatsScreen(archive, "", "haiku", lambda: now))
        await wait_for(pilot, lambda: all(worker.is_finished for worker in app.workers if worker.name == "_load"))
        await pilot.press("tab")
        await pilot.pause()

    assert snap_compare(app_of(links), terminal_size=size, run_before=before)


def test_another_answer_beside_the_first(snap_compare):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await chat(pilot, links, None, True)
        await pilot.app.chat_screen.replies.ask_again()
        rounds = rounds_of("Or like this: the small one guesses, the large one keeps what it agrees with.", id=2)
        links[0].put(started([], 2), *rounds, ev.Finished(2, "end", "", stats_of(rounds), 9.0))
        await settle(pilot, links[0])

    assert snap_compare(app_of(links), terminal_size=(80, 24), run_before=before)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_an_empty_chat_with_the_tree_of_a_recording(snap_compare, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await connected(pilot, links)
        links[0].put(hello(), ready())
        await settle(pilot, links[0])

    app = app_of(links, demo=shipped_file("assets/demo.jsonl"))
    assert snap_compare(app, terminal_size=size, run_before=before)
