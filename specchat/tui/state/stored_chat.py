"""A chat outside of the screen: its stored records, its export as Markdown, HTML or JSON, its text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from specchat.engine.protocol.events import Stats
from specchat.engine.protocol.text import visible
from specchat.reply_page import PageTurn, page
from specchat.store import records
from specchat.store.chat_json import write_json
from specchat.tui.state import attachments, thoughts
from specchat.tui.state.chat import Chat
from specchat.tui.state.message_tree import MessageTree
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.turn import Reply, ReplyRounds, Turn, changes_text
from specchat.tui.text.markdown_blocks import reply_parser


def record_of(chat: Chat, updated: str) -> records.ChatRecord:
    created, leaf = (chat.turns[0].created, chat.turns[-1].id) if chat.turns else (updated, None)
    return records.ChatRecord(chat.id, chat.title, created, updated, chat.renamed, chat.system, leaf, chat.sent.first)


def message_of(turn: Turn) -> records.StoredMessage:
    """A turn as it is now, without its rounds; of a reply that is being written the lengths are never longer than the
    text.
    """
    if (reply := turn.reply) is None:
        return records.StoredMessage(turn.id, turn.parent, "user", turn.content, turn.created)
    status: records.Status = "done" if reply.stop else "streaming"
    if reply.stop == "interrupted":
        status = "interrupted"
    lengths, facts = list(reply.lengths), reply.facts
    if facts.stats is None and (stats := reply.figures.known_stats()) is not None:
        facts = replace(facts, stats=msgspec.to_builtins(stats))
    return records.StoredMessage(turn.id, turn.parent, "assistant", reply.text, turn.created, status, lengths, facts)


def message_with_rounds(turn: Turn) -> records.StoredMessage:
    """A turn as it is now; to pack its rounds may take a while."""
    return replace(message_of(turn), rounds=turn.reply.rounds.pack() if turn.reply else b"")


def turn_of(message: records.StoredMessage) -> Turn:
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
        draft_s=known.draft_s, verify_s=known.verify_s, other_s=known.other_s, there_s=known.there_s, stats=known,
        context_tokens=known.prompt_tokens + known.tokens,
    )  # fmt: skip


def as_markdown(chat: records.ChatRecord, messages: Sequence[records.StoredMessage]) -> str:
    parts = [f"# {chat.title}", f"*{chat.created[:10]} · specchat --resume {chat.id}*"]
    if chat.system:
        parts.append("\n".join(f"> {line}" for line in chat.system.split("\n")))
    for turn in path_of(chat, messages):
        parts += [f"## {_who(turn)}", (turn.reply.text if turn.reply else turn.content).strip("\n")]
        if turn.reply and (line := turn.reply.line()):
            parts.append(f"*{line}*")
    return "\n\n".join(parts) + "\n"


def as_html(chat: records.ChatRecord, messages: Sequence[records.StoredMessage]) -> str:
    """One page that needs nothing else: replies as coloured tokens or as formatted text, and their rounds to play."""
    about = f"{chat.created[:10]} · specchat --resume {chat.id}"
    return page(chat.title, about, [_page_turn(turn) for turn in path_of(chat, messages)], chat.system)


FORMATS: dict[str, Callable[[records.ChatRecord, Sequence[records.StoredMessage]], str]] = {
    "md": as_markdown,
    "json": write_json,
    "html": as_html,
}


def path_of(chat: records.ChatRecord, messages: Sequence[records.StoredMessage]) -> Sequence[Turn]:
    branches = MessageTree()
    branches.restore((turn_of(message) for message in messages), chat.leaf)
    return branches.path


def _who(turn: Turn) -> str:
    return "You" if turn.reply is None else turn.reply.facts.pair or "Reply"


def _page_turn(turn: Turn) -> PageTurn:
    if (reply := turn.reply) is None:
        return PageTurn(_who(turn), turn.content)
    rendered = reply_parser().disable("image").render(visible(reply.text))
    seed = f" · seed {reply.facts.seed}" if reply.facts.seed is not None else ""
    figures = reply.line() + seed + changes_text(reply.facts)
    return PageTurn(_who(turn), "", _pieces(reply), reply.rounds.list, rendered, figures)


def _pieces(reply: Reply) -> list[tuple[str, str]]:
    """Text and origin of every piece; `given` for those that the reply took over from another branch."""
    pieces, at = [], 0
    given = sum(characters for _, characters in reply.facts.begun)
    for text, origin in reply.raw_pieces():
        pieces.append((text, "given" if at < given else origin))
        at += len(text)
    return pieces


def conversation(turns: Sequence[Turn]) -> str:
    """All messages; questions are marked, files are only named."""
    return "\n\n".join(said for turn in turns if (said := _said(turn)))


def _said(turn: Turn) -> str:
    if turn.reply is not None:
        return visible(thoughts.without_thoughts(turn.reply.text)).strip("\n")
    without_thoughts, files = attachments.split(turn.content)
    lines = [*without_thoughts.split("\n"), *(f"@{file.path} ({file.size})" for file in files)]
    return visible("\n".join(f"› {line}" if number == 0 else f"  {line}" for number, line in enumerate(lines)))
