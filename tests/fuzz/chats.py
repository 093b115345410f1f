"""A small chat for the fuzzers that damage chats, and everything the program does with a chat it kept."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import msgspec

from specchat.cli.chats import _lines
from specchat.config.directories import private_dir
from specchat.engine.protocol.events import Piece, RoundDone, Timings, Tree, Verdict
from specchat.engine.protocol.packed_rounds import pack_rounds
from specchat.store.chat_json import read_json
from specchat.store.chats import Chats
from specchat.store.database import open_to_write
from specchat.store.records import LARGEST_ROUNDS_BYTES, ChatRecord, Facts, StoredMessage
from specchat.tui.state.chat import Chat
from specchat.tui.state.stored_chat import FORMATS, turn_of
from specchat.tui.tree import layout

WHEN = "2026-01-31T12:00:00.000Z"
STATS = {"tokens": 3, "rounds": 2, "drafted": 4, "accepted": 1}
ROUND = RoundDone(
    1, 0, 0.1, 9, {"nodes": 2}, Tree([1, 2, 3], [-1, 0, 0], ["They", " like", " 木"], [], [None, -0.1, -3.0]),
    Verdict([1], 4, " light", -0.2, ["accepted", "accepted", "rejected"]),
    [Piece(2, " like", "drafted"), Piece(4, " light", "target")], Timings(0.1, 0.1, 0.0),
)  # fmt: skip
ROUNDS = pack_rounds([ROUND, ROUND], LARGEST_ROUNDS_BYTES)
FACTS = Facts("smol", 7, "end", {"width": 4, "stop": []}, {"lossless": True, "reason": "why"}, STATS, 0.5)

CHAT = ChatRecord("first", "Why trees?", WHEN, WHEN, system="Be brief.", leaf="d", sent_from="b")
MESSAGES = [
    StoredMessage("a", None, "user", "Why do trees grow?", WHEN),
    StoredMessage("b", "a", "assistant", "They *like* light 🌳.", WHEN, "done", [4, -7, 9], FACTS, ROUNDS),
    StoredMessage("c", "a", "assistant", "No idea", WHEN, "interrupted", [2, 5]),
    StoredMessage("d", "b", "user", "More", WHEN),
]


def write_chats(file: Path, *titles: str) -> None:
    """A database of the chat, in the file itself and in no file beside it; with titles, of one chat for each."""
    private_dir(file.parent)
    file.write_bytes(_database(titles))


@cache
def _database(titles: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        connection = open_to_write(file := Path(folder) / "chats.db")[0]
        chats = Chats(connection)
        named = {f"{CHAT.id}{number}": title for number, title in enumerate(titles)} or {CHAT.id: CHAT.title}
        for id, title in named.items():
            with chats.transaction():
                chats.save(msgspec.structs.replace(CHAT, id=id, title=title))
                for message in MESSAGES:
                    chats.add(id, message)
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
        return file.read_bytes()


def use(chats: Chats) -> list[str]:
    """List, search, read, export and open every chat there is; their ids."""
    summaries = chats.summaries()
    for line, _ in _lines([*summaries, *chats.summaries("light"), *chats.summaries("木")], previews=True):
        assert line.isprintable(), repr(line)
    for summary in summaries:
        chat, messages = chats.chat(chats.find(summary.id))
        for write in FORMATS.values():
            write(chat, messages)
        screen = Chat()
        screen.open_stored(chat, [turn_of(message) for message in messages])
        screen.messages()
        assert {turn.id for turn in screen.branches} == {message.id for message in messages}
        for turn in screen.turns:
            assert turn.reply is None or len("".join(text for text, _ in turn.reply.pieces)) >= len(turn.reply.text)
            for round in turn.reply.rounds.list if turn.reply else ():
                assert layout(round, 40, 10)
    return [summary.id for summary in summaries]


def exported_again(chats: Chats, id: str) -> None:
    """What was taken in can be given out and taken in again."""
    chat, messages = chats.chat(id)
    assert read_json(FORMATS["json"](chat, messages).encode(), "again.json").messages == messages
