"""How the ribbon of a long reply looks, while it is walked and in an old chat."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from driving import connected
from fake import TEXT, FakeLink, hello, ready, rounds_of, started, stats_of
from test_snapshots import app_of, settle

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate

SIZES = pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
PROPOSERS = ("suffix", "draft_model", "draft_model")


def long_reply(id: int = 1) -> list[ev.RoundDone]:
    """Rounds of several proposers, more than fit into a line."""

    def proposed(round: ev.RoundDone) -> ev.RoundDone:
        name = PROPOSERS[round.index // 7 % len(PROPOSERS)]
        draws = [msgspec.structs.replace(draw, proposer=name) for draw in round.tree.draws]
        return msgspec.structs.replace(round, tree=msgspec.structs.replace(round.tree, draws=draws))

    return [proposed(round) for round in rounds_of(TEXT * 2, id=id)]


async def answered(pilot, links: list[FakeLink]) -> None:
    await connected(pilot, links)
    links[0].put(hello(), ready())
    await settle(pilot, links[0])
    pilot.app.chat_screen.prompt.write("How does it work?")
    await pilot.press("enter")
    rounds = long_reply()
    links[0].put(started(links[0].last(Generate).messages), *rounds)
    links[0].put(ev.Finished(1, "end", "", stats_of(rounds), 9.0))
    await settle(pilot, links[0])


@pytest.mark.parametrize("size", [(200, 60), (120, 40), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_round_in_the_middle_of_a_long_reply(snap_compare, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await answered(pilot, links)
        pilot.app.chat_screen.tree_panel.focus()
        await pilot.press("pageup", *["ctrl+pageup"] * 6)
        await pilot.pause()

    assert snap_compare(app_of(links), terminal_size=size, run_before=before)


@SIZES
def test_an_old_chat_with_the_ribbon_of_its_last_reply(snap_compare, tmp_path: Path, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await answered(pilot, links)
        chat = pilot.app.chat.id
        await pilot.press(*"/new", "enter")
        await settle(pilot, links[0])
        assert not pilot.app.chat.rounds
        await pilot.app.chat_screen.current_chat.open(chat)
        await settle(pilot, links[0])

    assert snap_compare(app_of(links, store=tmp_path / "chats.db"), terminal_size=size, run_before=before)
