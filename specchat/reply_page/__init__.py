"""Replies as one HTML file that needs nothing else: it plays their rounds, and walks through the trees.

Everything a model or a user wrote is shown as text. Where there are rounds, the only script that may run is the page's
own, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path

from specchat.engine.client.speedup import stats_line
from specchat.engine.protocol.events import Event, Finished, RoundDone, Started
from specchat.engine.protocol.round_nodes import LayerHeat, ShownNode, heat_of, nodes_of
from specchat.engine.protocol.text import between, visible

MOST_BYTES = 250_000
"""Of the rounds of one page. Beyond that trees keep fewer of the rejected guesses, then only later rounds stay."""

_SPANS_BYTES = 85
"""What the text takes more where it is divided into rounds, for each."""

_LONGEST_LABEL = 100

_LETTERS = {
    "root": "R", "accepted": "a", "bonus": "b", "rejected": "x", "unreached": "u", "pruned": "p", "cut": "c",
}  # fmt: skip

Pieces = Sequence[tuple[str, str]]
"""Text and origin of the pieces of a reply: `drafted`, `target`, or `given` for what stood there before it."""


@dataclass(frozen=True)
class PageTurn:
    """One turn of a chat. A reply has pieces, and rounds where they are known.

    Args:
        pieces: of a reply; None: this is none.
        rendered: the reply as formatted text; HTML, which the caller has made safe.
        heat: how late its tokens were decided; `page` fills it in.
    """

    who: str
    text: str = ""
    pieces: Pieces | None = None
    rounds: Sequence[RoundDone] = ()
    rendered: str = ""
    figures: str = ""
    heat: LayerHeat | None = None


def page(title: str, about: str, turns: Sequence[PageTurn], system: str = "", *, notebook: bool = False) -> str:
    """The page. In a notebook it has no title, and is as wide as the cell."""
    turns, data = _fitted([replace(turn, heat=heat_of(turn.rounds)) for turn in turns])
    replies = [turn for turn in turns if turn.rounds]
    system = f'<p class="system">{escape(visible(system))}</p>\n' if system else ""
    numbers = {id(turn): number for number, turn in enumerate(replies)}
    said = "\n".join(_section(turn, numbers.get(id(turn))) for turn in turns if turn.text or turn.pieces is not None)
    values = {
        "TITLE": escape(visible(title)),
        "ABOUT": escape(visible(about)),
        "SAID": system + said,
        "CLASS": ' class="notebook"' if notebook else "",
        "ROUNDS": data,
        "SCRIPTS": f"; script-src '{_hash_of_script()}'" if replies else "",
    }
    template = _template()
    given = any(origin == "given" for turn in turns for _, origin in turn.pieces or ())
    formatted = any(turn.rendered for turn in turns)
    for part, wanted in (("player", replies), ("formatted", formatted), ("given", given)):
        removed = f"<!--/?{part}-->\n" if wanted else f"<!--{part}-->.*?<!--/{part}-->\n"
        template = re.sub(removed, "", template, flags=re.S)
    return re.sub("{{([A-Z]+)}}", lambda match: values[match[1]], template)


def turns_of(events: Iterable[Event]) -> list[PageTurn]:
    """The replies in these events, each below what it answers; two that were written by turns follow each other."""
    replies: list[tuple[Started, list[RoundDone], list[Finished]]] = []
    by_id: dict[int, int] = {}
    for event in events:
        match event:
            case Started():
                by_id[event.id] = len(replies)
                replies.append((event, [], []))
            case RoundDone():
                replies[by_id[event.id]][1].append(event)
            case Finished():
                replies[by_id[event.id]][2].append(event)
    turns: list[PageTurn] = []
    for started, rounds, ended in replies:
        turns += _asked(started, whole=not turns)
        pieces = [(text, "given") for text in started.begun]
        pieces += [(piece.text, piece.origin) for round in rounds for piece in round.pieces]
        figures = "".join(f"{stats_line(finished.stats)} · seed {started.seed}" for finished in ended)
        pieces += [(finished.tail, "target") for finished in ended]
        turns.append(PageTurn(started.pair, "", pieces, rounds, "", figures))
    return turns


def _asked(started: Started, whole: bool) -> Iterator[PageTurn]:
    """The turns before a reply: all of them, or those after the reply before."""
    if started.text is not None:
        yield PageTurn("Text", started.text)
    last = max([0, *(at for at, message in enumerate(started.messages, 1) if message.role == "assistant")])
    for message in started.messages[0 if whole else last :]:
        is_reply = message.role == "assistant"
        who = {"user": "You", "system": "System", "assistant": started.pair}[message.role]
        yield PageTurn(who, message.content, [(message.content, "target")] if is_reply else None)


def in_notebook(height: int, *turns: PageTurn) -> str:
    """The page in a frame of its own, for the output of a cell."""
    text = escape(page("", "", turns, notebook=True))
    style = f"width:100%;height:{height}px;border:0;color-scheme:light dark"
    return f'<iframe title="token trees" sandbox="allow-scripts" style="{style}" srcdoc="{text}"></iframe>'


def in_rounds(pieces: Pieces, rounds: Sequence[RoundDone]) -> tuple[Pieces, list[Pieces], Pieces]:
    """What the rounds wrote of a reply, round by round, with what stands before them and after them.

    A reply may begin with text of an earlier run and end with text that was held back. Where the rounds wrote none of
    it, as in a reply that was edited, all of it stands before them.
    """
    pieces = [(visible(text), origin) for text, origin in pieces]
    written: list[Pieces] = [[(visible(piece.text), piece.origin) for piece in round.pieces] for round in rounds]
    whole, text = "".join(text for text, _ in pieces), "".join(text for each in written for text, _ in each)
    begin = whole.rfind(text) if text else -1
    if begin < 0:
        return pieces, [], ()
    return between(pieces, 0, begin), written, between(pieces, begin + len(text), len(whole))


@cache
def _template() -> str:
    return (Path(__file__).parent / "page.html").read_text(encoding="utf-8")


def _hash_of_script() -> str:
    script = _template().partition("<script>")[2].partition("</script>")[0]
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _section(turn: PageTurn, number: int | None) -> str:
    who = f"<h2>{escape(visible(turn.who))}</h2>"
    if turn.pieces is None:
        return f'<section class="user">{who}<div class="said">{escape(visible(turn.text))}</div></section>'
    before, written, after = in_rounds(turn.pieces, turn.rounds)
    rounds = "".join(f'<span class="round">{_runs(each)}</span>' for each in written)
    which = f' data-reply="{number}"' if number is not None else ""
    rendered = f'<div class="rendered">{turn.rendered}</div>' if turn.rendered else ""
    figures = f'<p class="figures">{escape(visible(turn.figures))}</p>' if turn.figures else ""
    if turn.heat is not None:
        blocks = "".join("▁▂▃▄▅▆▇█"[max(0, min(7, round(8 * share) - 1))] for share in turn.heat.shares)
        figures += f'<p class="figures"><span aria-hidden="true">{blocks}</span> {turn.heat.words}</p>'
    return (
        f'<section class="reply">{who}<div class="said tokens"{which}>{_runs(before)}{rounds}{_runs(after)}</div>'
        f"{rendered}{figures}</section>"
    )


def _runs(pieces: Pieces) -> str:
    """Neighbours of one origin together."""
    return "".join(
        f'<span class="{origin}">{escape(text)}</span>'
        for origin, run in groupby(pieces, key=lambda piece: piece[1])
        if (text := "".join(text for text, _ in run))
    )


def _fitted(turns: Sequence[PageTurn]) -> tuple[list[PageTurn], str]:
    """The turns, each with the last of its rounds, and these as JSON; as much as fits into MOST_BYTES."""
    trees = [[(round.at_s, nodes_of(round), _packed_lenses(round)) for round in turn.rounds] for turn in turns]
    most = max((len(nodes) for rounds in trees for _, nodes, _ in rounds), default=0)
    while True:
        names: dict[str, int] = {}
        packed = [[*_packed_rounds(rounds, most, names)] for rounds in trees if rounds]
        skipped = [len(turn.rounds) - len(rounds) for turn, rounds in zip(turns, trees, strict=True) if rounds]
        text = _json({"names": [*names], "skipped": skipped, "replies": packed})
        size = len(text.encode()) + _SPANS_BYTES * sum(map(len, trees))
        if size <= MOST_BYTES:
            break
        if most:
            most = min(most * 3 // 4, most * MOST_BYTES // size)
        else:
            trees = [rounds[(len(rounds) + 1) // 2 :] for rounds in trees]
    left = (len(turn.rounds) - len(rounds) for turn, rounds in zip(turns, trees, strict=True))
    return [replace(turn, rounds=turn.rounds[left_out:]) for turn, left_out in zip(turns, left, strict=True)], text


def _json(value: object) -> str:
    """The value as JSON that no HTML parser takes for a tag."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _packed_rounds(
    rounds: Sequence[tuple[float, list[ShownNode], list[object]]], most: int, names: dict[str, int]
) -> Iterator[list[object]]:
    """Each round as the script reads it: milliseconds since the last one, guesses left out, its nodes by column, and
    what was seen of the layers where the target was asked, at the root and behind each kept guess, if anything was."""
    before_s = 0.0
    for at_s, all_nodes, lenses in rounds:
        nodes, hidden = _fewer(all_nodes, most)
        passed_s, before_s = max(0.0, at_s - before_s), at_s
        yield [
            min(int(1000 * passed_s), 60_000),
            hidden,
            [node.parent for node in nodes],
            [visible(node.text[:_LONGEST_LABEL]) for node in nodes],
            "".join(_LETTERS[node.state] for node in nodes),
            [_per_mille(node.target) for node in nodes],
            [_per_mille(node.draft) for node in nodes],
            [_index(" and ".join(node.proposers), names) for node in nodes],
            *([lenses] if any(lenses) else []),
        ]


def _packed_lenses(round: RoundDone) -> list[object]:
    """Layers, those from which on the last one's token was the likeliest or no longer, that token, the one before it,
    and whether another was drawn; 0 where nothing was seen."""
    packed: list[object] = []
    for piece in round.pieces:
        if (lens := piece.lens) is None:
            packed.append(0)
            continue
        agrees = [False, *lens.agrees]
        turns = [layer for layer in range(1, len(agrees)) if agrees[layer] != agrees[layer - 1]]
        tops = [visible(top.text[:_LONGEST_LABEL]) for top in lens.tops[-2:]]
        before = tops[0] if len(tops) > 1 else ""
        packed.append([lens.layers, turns, tops[-1], before, int(lens.tops[-1].token != piece.token)])
    return packed


def _fewer(nodes: list[ShownNode], most: int) -> tuple[list[ShownNode], int]:
    """The kept tokens and so many others, the first ones, and how many are left out; parents come before children."""
    place: dict[int, int] = {-1: -1}
    kept: list[ShownNode] = []
    others = 0
    for number, node in enumerate(nodes):
        if node.state not in ("root", "accepted", "bonus"):
            if others >= most or node.parent not in place:
                continue
            others += 1
        place[number] = len(kept)
        kept.append(ShownNode(place[node.parent], node.text, node.state, node.target, node.draft, node.proposers))
    return kept, len(nodes) - len(kept)


def _index(name: str, names: dict[str, int]) -> int:
    return names.setdefault(visible(name)[:_LONGEST_LABEL], len(names)) if name else -1


def _per_mille(probability: float | None) -> int:
    return -1 if probability is None else round(1000 * probability)
