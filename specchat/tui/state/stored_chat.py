"""A chat outside of the screen: its stored records, its export as Markdown, HTML or JSON, its text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby
from typing import Any

import msgspec
from msgspec.structs import replace

from specchat.engine.protocol.events import Stats
from specchat.engine.protocol.text import visible
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
        draft_s=known.draft_s, verify_s=known.verify_s, other_s=known.other_s, stats=known,
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
    """One self-contained page, which shows the replies as coloured tokens or as formatted text."""
    said = "\n".join(_section(turn) for turn in path_of(chat, messages))
    system = f'<p class="system">{escape(visible(chat.system))}</p>\n' if chat.system else ""
    about = escape(f"{chat.created[:10]} · specchat --resume {chat.id}")
    values = {"TITLE": escape(visible(chat.title)), "ABOUT": about, "SAID": system + said}
    return re.sub("|".join(values), lambda match: values[match.group()], _PAGE)


def as_json(chat: records.ChatRecord, messages: Sequence[records.StoredMessage]) -> str:
    return write_json(chat, list(messages))


FORMATS: dict[str, Callable[[records.ChatRecord, Sequence[records.StoredMessage]], str]] = {
    "md": as_markdown,
    "json": as_json,
    "html": as_html,
}


def path_of(chat: records.ChatRecord, messages: Sequence[records.StoredMessage]) -> Sequence[Turn]:
    branches = MessageTree()
    branches.restore((turn_of(message) for message in messages), chat.leaf)
    return branches.path


def _who(turn: Turn) -> str:
    return "You" if turn.reply is None else turn.reply.facts.pair or "Reply"


def _section(turn: Turn) -> str:
    who = f"<h2>{escape(visible(_who(turn)))}</h2>"
    if turn.reply is None:
        return f'<section class="user">{who}<div class="said">{escape(visible(turn.content))}</div></section>'
    runs = groupby(turn.reply.pieces, key=lambda piece: piece[1])
    tokens = "".join(
        f'<span class="{origin}">{escape("".join(text for text, _ in run))}</span>' for origin, run in runs
    )
    rendered = reply_parser().disable("image").render(visible(turn.reply.text))
    facts = turn.reply.facts
    seed = f" · seed {facts.seed}" if facts.seed is not None else ""
    figures = f'<p class="figures">{escape(turn.reply.line() + seed + visible(changes_text(facts)))}</p>'
    return (
        f'<section class="reply">{who}<div class="said tokens">{tokens}</div>'
        f'<div class="rendered">{rendered}</div>{figures}</section>'
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>TITLE</title>
<style>
:root { --page: #fafbfc; --panel: #f1f4f8; --line: #c4cedb; --text: #222a35; --quiet: #647285;
  --drafted: #1f6fb8; --target: #b8640f; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --page: #10141b; --panel: #151a23; --line: #2d3747; --text: #d5dbe5;
  --quiet: #8390a3; --drafted: #6cb2f7; --target: #f2a65a; } }
body { margin: 0 auto; max-width: 46rem; padding: 2rem 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.6 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: .8rem; color: var(--quiet); margin: 0 0 .3rem; }
.about, .figures, .system { color: var(--quiet); font-size: .85rem; }
.system { white-space: pre-wrap; border-left: 3px solid var(--line); padding-left: .8rem; }
section { margin: 1.6rem 0; } .user { background: var(--panel); border-left: 3px solid var(--target);
  padding: .6rem .9rem; } .said { white-space: pre-wrap; overflow-wrap: anywhere; }
.tokens { font: .9rem/1.6 ui-monospace, monospace; } .drafted { color: var(--drafted); }
.target { color: var(--target); border-bottom: 1px dotted; }
pre { background: var(--panel); padding: .8rem; overflow-x: auto; } code { font-family: ui-monospace, monospace; }
table { border-collapse: collapse; } td, th { border: 1px solid var(--line); padding: .2rem .6rem; }
a { color: var(--drafted); } label { cursor: pointer; }
.rendered { display: none; } #rendered:checked ~ main .rendered { display: block; }
#rendered:checked ~ main .tokens { display: none; }
</style>
</head>
<body>
<h1>TITLE</h1>
<p class="about">ABOUT · <span class="drafted">drafted and accepted</span> ·
<span class="target">the target's own</span></p>
<input type="checkbox" id="rendered"> <label for="rendered">as formatted text</label>
<main>
SAID
</main>
</body>
</html>
"""


def conversation(turns: Sequence[Turn]) -> str:
    """All messages; questions are marked, files are only named."""
    return "\n\n".join(said for turn in turns if (said := _said(turn)))


def _said(turn: Turn) -> str:
    if turn.reply is not None:
        return visible(thoughts.without_thoughts(turn.reply.text)).strip("\n")
    without_thoughts, files = attachments.split(turn.content)
    lines = [*without_thoughts.split("\n"), *(f"@{file.path} ({file.size})" for file in files)]
    return visible("\n".join(f"› {line}" if number == 0 else f"  {line}" for number, line in enumerate(lines)))
