"""The rounds of every reply are stored with the chat, and shown again when it is opened."""

from __future__ import annotations

from pathlib import Path

from driving import Driver, driving
from fake import rounds_of

from specchat.store.chats import Chats
from specchat.store.database import open_to_read
from specchat.store.records import StoredMessage
from specchat.tui.state import turn
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.turn import Reply, ReplyRounds
from specchat.tui.state.visible_reply import ShownRounds


def stored(store: Path) -> list[StoredMessage]:
    with open_to_read(store) as connection:
        return Chats(connection).chat(Chats(connection).last())[1]


def pieces(d: Driver) -> list[str]:
    return [piece.text for round in d.app.chat.rounds for piece in round.pieces]


def holds_list(rounds: ReplyRounds) -> bool:
    return rounds._list is not None


async def test_an_old_chat_shows_the_trees_of_its_last_reply(store):
    async with driving(store=store) as d:
        await d.say("How does it work?")
        rounds = await d.reply()
        drawn = d.drawn(d.view.tree_panel)
    async with driving(store=store) as d:
        await d.view.current_chat.open(stored_id(store))
        await d.settle()
        assert pieces(d) == [piece.text for round in rounds for piece in round.pieces]
        assert d.drawn(d.view.tree_panel) == drawn


def stored_id(store: Path) -> str:
    with open_to_read(store) as connection:
        return Chats(connection).last()


async def test_rounds_are_stored_when_a_reply_ends_however_it_ends(store):
    async with driving(store=store) as d:
        await d.say("hi")
        await d.reply(upto=3)
        await d.say("and then?")
        await d.reply(upto=2, finish=False)
        d.app.context.archive.close()
    first, second = (ReplyRounds(message.rounds).list for message in stored(store) if message.role == "assistant")
    assert (len(first), len(second)) == (3, 2)


async def test_a_reply_that_goes_on_stores_the_rounds_of_both_parts(store):
    async with driving(store=store) as d:
        await d.say("hi")
        await d.reply(upto=3)
        d.app.chat.turns[-1].reply.stop = "length"
        await d.say("/continue")
        await d.reply(upto=2)
    assert len(ReplyRounds(stored(store)[1].rounds).list) == 5


async def test_bytes_that_cannot_be_read_show_no_tree_and_stay_as_they_are(store):
    async with driving(store=store) as d:
        await d.say("hi")
        await d.reply()
        await d.app.context.archive.change(
            lambda chats: chats.update(
                d.app.chat.id, StoredMessage(d.app.chat.turns[1].id, None, "assistant", "text", "", rounds=b"damaged")
            )
        )
        await d.say("/new")
        await d.view.current_chat.open(stored_id(store))
        await d.settle()
        assert not d.app.chat.rounds
        assert "text" in d.screen()
    assert stored(store)[1].rounds == b"damaged"


def reply_of(count: int) -> Reply:
    reply = Reply(1, Figures())
    reply.rounds.list.extend(rounds_of()[:count])
    return reply


def test_only_the_rounds_that_are_shown_are_held_as_a_list():
    shown, replies = ShownRounds(), [reply_of(count) for count in (3, 5, 0)]
    shown.follow(replies[:1])
    shown.follow(replies)
    assert len(shown.newest) == 5
    assert [holds_list(reply.rounds) for reply in replies] == [False, True, True]
    shown.look_at(replies[0])
    assert (shown.looks_back, len(shown.reply.rounds.list), len(shown.newest)) == (True, 3, 5)
    shown.look_at(replies[1])
    assert not shown.looks_back, "that is the newest one"
    assert [holds_list(reply.rounds) for reply in replies[:2]] == [False, True]


def test_rounds_are_packed_once_and_again_only_where_there_are_more():
    rounds = reply_of(3).rounds
    assert rounds.pack() is rounds.pack()
    before = rounds.pack()
    rounds.list.append(rounds_of()[3])
    assert rounds.pack() != before
    rounds.drop_list()
    assert len(rounds.list) == 4


def test_rounds_far_back_in_a_long_reply_keep_only_their_accepted_paths(monkeypatch):
    monkeypatch.setattr(turn, "WHOLE_TREES", 5)
    rounds, grown = rounds_of()[:8], ReplyRounds()
    for round in rounds:
        grown.append(round)
    assert [len(round.tree.texts) for round in grown.list[:3]] == [1 + len(round.verdict.path) for round in rounds[:3]]
    assert grown.list[3:] == rounds[3:]
    assert [round.pieces for round in grown.list] == [round.pieces for round in rounds]
