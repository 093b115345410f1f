"""The list of pairs as rows: one line for each, and below what the chosen one is, needs and lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from specchat.engine.protocol.events import Loading
from specchat.engine.protocol.text import visible
from specchat.tui.state.pair_info import PairInfo
from specchat.tui.text import numbers
from specchat.tui.text.cells import Row, bar, clip, cut, padded, width_of
from specchat.tui.text.wrap import wrap

_TROUBLES = {"files": "cannot be read", "shape": "unsupported shape", "tokens": "tokenizers differ"}
_ABOUT_ROWS = 4


@dataclass(frozen=True)
class Shelf:
    """What the list shows: the pairs, what is under way with them, and what the user is asked."""

    pairs: Sequence[PairInfo] = ()
    in_use: str = ""
    first: str = ""  # the pair the app begins with
    held_bytes: int = 0  # memory of the pair in use, which a switch may set free
    fetching: Mapping[str, Loading | None] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    asking: str = ""  # a pair that would be forgotten
    said: str = ""


def pair_rows(
    shelf: Shelf, at: int, top: int, width: int, height: int, hint: Callable[[str, str], str]
) -> tuple[list[Row], int]:
    """The rows, and which pair is the first one in view. `hint` says which key of a binding does something."""
    if not shelf.pairs:
        said = visible(shelf.said)
        return [[(said[a:b].strip(), "warn")] for a, b in wrap(said, width)] if said else [
            [("no pairs are known", "dim")]
        ], 0
    about = _about(shelf, shelf.pairs[at], width) if height >= 9 else []
    keys = _keys(shelf, shelf.pairs[at], width, hint)
    room = max(1, height - len(about) - 1)
    top = max(0, min(max(min(top, at), at - room + 1), len(shelf.pairs) - room))
    names = min(24, max(cell_len(pair.name) for pair in shelf.pairs)) + 2
    rows = [_row(shelf, pair, index == at, names, width) for index, pair in enumerate(shelf.pairs)][top : top + room]
    return [*rows, *([] for _ in range(room - len(rows))), *about, keys], top


def _row(shelf: Shelf, pair: PairInfo, chosen: bool, names: int, width: int) -> Row:
    mark, role, state = _state(shelf, pair)
    name = cut(pair.name, names - 1).ljust(names)
    lead: Row = [(mark + " ", role), (name, "strong")]
    if pair.name in shelf.fetching:
        row = [*lead, *_progress(shelf.fetching[pair.name], width - width_of(lead))]
    else:
        row = [*lead, (state, role)]
    tags = [word for word, name in (("at start", shelf.first), ("in use", shelf.in_use)) if name == pair.name]
    if tags:
        tag = " " + " · ".join(tags)
        row = [*padded(row, width - len(tag)), (tag, "good" if pair.name == shelf.in_use else "dim")]
    if chosen:
        return [("".join(text for text, _ in padded(row, width)), "selected")]
    return clip(row, width)


def _state(shelf: Shelf, pair: PairInfo) -> tuple[str, str, str]:
    """Mark, role and words; what stands against a pair comes first."""
    if pair.name in shelf.fetching:
        return "⇣", "bonus", "fetching"
    if pair.trouble:
        return "✕", "bad", _TROUBLES[pair.trouble]
    if pair.name in shelf.failed:
        return "✕", "bad", "not fetched"
    if pair.short_of_memory(shelf.held_bytes):
        return "!", "warn", "does not fit in memory"
    match pair.state:
        case "ready":
            return "●", "good", "ready" + (f" · {numbers.size(pair.disk_bytes)}" if pair.disk_bytes else "")
        case "unverified":
            return "◐", "warn", "here · verified when loaded"
        case "partial":
            return "◐", "warn", f"partly here · {_left(pair)}"
        case "missing":
            return "○", "dim", _left(pair)
        case _:
            return "○", "dim", "on the engine's machine"


def _left(pair: PairInfo) -> str:
    return f"{numbers.size(pair.download_bytes)} to fetch" if pair.download_bytes else "to fetch"


def _progress(event: Loading | None, width: int) -> Row:
    if event is None:
        return [("beginning …", "dim")]
    what, share, figures = numbers.loading(event)
    if share is None:
        return [(cut(f"{what} {figures}", width), "dim")]
    return [
        (bar(share, max(6, min(20, width - 50))), "bar"),
        (f" {share:4.0%} ".replace("%", " %"), "text"),
        (figures, "dim"),
    ]


def _about(shelf: Shelf, pair: PairInfo, width: int) -> list[Row]:
    """A rule and four rows: the models, what they are, the memory, and what is wrong or worth knowing."""
    models = pair.target + (f" ← {pair.draft}" if pair.draft else " · no draft model")
    lines: list[tuple[str, str]] = [(models, "strong")]
    wrong = pair.refusal or shelf.failed.get(pair.name, "")
    lines += [(row, "bad") for row in _wrapped(wrong, width)[:2]] if wrong else []
    trained = f"trained drafters: {', '.join(pair.trained)}" if pair.trained else ""
    about = " · ".join(part for part in (pair.summary, trained, pair.remark, pair.notes) if part)
    lines += [(row, "text") for row in _wrapped(about, width)[: 2 if not wrong else 1]] if about else []
    if memory := _memory(shelf, pair):
        lines.insert(
            min(len(lines), _ABOUT_ROWS - 1), (memory, "warn" if pair.short_of_memory(shelf.held_bytes) else "dim")
        )
    lines = [*lines, *[("", "")] * _ABOUT_ROWS][:_ABOUT_ROWS]
    return [[("─" * width, "line")], *([(cut(text, width), role)] for text, role in lines)]


def _memory(shelf: Shelf, pair: PairInfo) -> str:
    if not pair.needed_bytes:
        return ""
    needed = f"about {numbers.size(pair.needed_bytes)} of memory"
    if pair.free_bytes is None:
        return needed
    free = f"{needed} · {numbers.size(pair.free_bytes)} free"
    if shelf.held_bytes and shelf.in_use != pair.name:
        free += f" · {numbers.size(shelf.held_bytes)} held by {shelf.in_use}"
    return free


def _wrapped(text: str, width: int) -> list[str]:
    rows = [text[a:b].strip() for a, b in wrap(text, width)]
    return [*rows[:1], cut(" ".join(rows[1:]), width)] if len(rows) > 2 else rows


def _keys(shelf: Shelf, pair: PairInfo, width: int, hint: Callable[[str, str], str]) -> Row:
    if shelf.asking:
        return [(cut(f"forget {shelf.asking}? its weights stay · y yes · n no", width), "warn")]
    if shelf.said:
        return [(cut(shelf.said, width), "warn")]
    loads = "fetches" if pair.state in ("partial", "missing") else "loads"
    keys = [
        hint("pairs.stop", "stops fetching") if pair.name in shelf.fetching else hint("pairs.choose", loads),
        hint("pairs.add", "adds"),
        hint("pairs.forget", "forgets") if pair.yours else "",
        hint("pairs.close", "closes"),
    ]
    return [(cut(" · ".join(filter(None, keys)), width), "dim")]
