"""Converts between the chat on the screen and its stored records."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from specchat.engine.protocol.events import Stats
from specchat.store import records
from specchat.tui.state.chat import Chat
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.reply_rounds import ReplyRounds
from specchat.tui.state.turn import Reply, Turn


def record_of(chat: Chat, updated: str) -> records.Chat:
    """The chat without its messages."""
    created, leaf = (chat.turns[0].created, chat.turns[-1].id) if chat.turns else (updated, None)
    return records.Chat(chat.id, chat.title, created, updated, chat.renamed, chat.system, leaf, chat.sent.first)


def message_of(turn: Turn) -> records.Message:
    """A turn as it is now, without its rounds; of a reply that is being written the lengths are never longer than the
    text.
    """
    if (reply := turn.reply) is None:
        return records.Message(turn.id, turn.parent, "user", turn.content, turn.created)
    status: records.Status = "done" if reply.stop else "streaming"
    if reply.stop == "interrupted":
        status = "interrupted"
    lengths, facts = list(reply.lengths), reply.facts
    if facts.stats is None and (stats := reply.figures.known_stats()) is not None:
        facts = replace(facts, stats=msgspec.to_builtins(stats))
    return records.Message(turn.id, turn.parent, "assistant", reply.text, turn.created, status, lengths, facts)


def message_with_rounds(turn: Turn) -> records.Message:
    """A turn as it is now; to pack its rounds may take a while."""
    return replace(message_of(turn), rounds=turn.reply.rounds.pack() if turn.reply else b"")


def turn_of(message: records.Message) -> Turn:
    """A message as the screen shows it."""
    if message.role == "user":
        return Turn("user", message.content, id=message.id, parent=message.parent, created=message.created)
    facts = message.facts or records.Facts()
    stop = {"interrupted": "interrupted", "streaming": "elsewhere"}.get(message.status) or facts.stop or "end"
    figures = _figures(facts.stats)
    reply = Reply(0, figures, message.content, message.pieces, stop, facts=facts, rounds=ReplyRounds(message.rounds))
    return Turn("assistant", reply=reply, id=message.id, parent=message.parent, created=message.created)


def _figures(stats: dict[str, Any] | None) -> Figures:
    """The figures as they were stored; none where the reply never began."""
    try:
        known = msgspec.convert(stats, Stats)
    except msgspec.ValidationError:
        return Figures()
    return Figures(
        rounds=known.rounds, tokens=known.tokens, drafted=known.drafted, accepted=known.accepted,
        draft_s=known.draft_s, verify_s=known.verify_s, other_s=known.other_s, stats=known,
        context_tokens=known.prompt_tokens + known.tokens,
    )  # fmt: skip
