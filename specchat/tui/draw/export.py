"""Exports a chat: the shown branch as Markdown or one HTML page, or everything as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby

from specchat.engine.protocol.text import visible
from specchat.store.chat_json import write_json
from specchat.store.records import Chat, Message
from specchat.tui.state.message_tree import MessageTree
from specchat.tui.state.reply_settings import changes_text
from specchat.tui.state.stored_chat import turn_of
from specchat.tui.state.turn import Turn
from specchat.tui.text.markdown_blocks import reply_parser


def as_markdown(chat: Chat, messages: Sequence[Message]) -> str:
    """The messages under headings of who wrote them, each reply with its line of figures."""
    parts = [f"# {chat.title}", f"*{chat.created[:10]} · specchat --resume {chat.id}*"]
    if chat.system:
        parts.append("\n".join(f"> {line}" for line in chat.system.split("\n")))
    for turn in path_of(chat, messages):
        parts += [f"## {_who(turn)}", (turn.reply.text if turn.reply else turn.content).strip("\n")]
        if turn.reply and (line := turn.reply.line()):
            parts.append(f"*{line}*")
    return "\n\n".join(parts) + "\n"


def as_html(chat: Chat, messages: Sequence[Message]) -> str:
    """One self-contained page, which shows the replies as coloured tokens or as formatted text."""
    said = "\n".join(_section(turn) for turn in path_of(chat, messages))
    system = f'<p class="system">{escape(visible(chat.system))}</p>\n' if chat.system else ""
    about = escape(f"{chat.created[:10]} · specchat --resume {chat.id}")
    values = {"TITLE": escape(visible(chat.title)), "ABOUT": about, "SAID": system + said}
    return re.sub("|".join(values), lambda match: values[match.group()], _PAGE)


def as_json(chat: Chat, messages: Sequence[Message]) -> str:
    """Everything, to be imported again."""
    return write_json(chat, list(messages))


FORMATS: dict[str, Callable[[Chat, Sequence[Message]], str]] = {"md": as_markdown, "json": as_json, "html": as_html}


def path_of(chat: Chat, messages: Sequence[Message]) -> Sequence[Turn]:
    """The turns of the shown branch."""
    branches: MessageTree[Turn] = MessageTree()
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
