"""The list of pairs: one line each, and below them details of the chosen one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from specchat.engine.protocol.events import Loading
from specchat.engine.protocol.text import visible
from specchat.tui.state.pair_info import PairInfo
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, bar, clip, cut, padded, width_of
from specchat.tui.text.wrap import wrap

_TROUBLES = {"files": "cannot be read", "shape": "unsupported shape", "tokens": "tokenizers differ"}
_ABOUT_LINES = 4


@dataclass(frozen=True)
class PairListState:
    """What the list shows: the pairs, downloads, failures, and an open confirmation or message."""

    pairs: Sequence[PairInfo] = ()
    in_use: str = ""
    first: str = ""  # the pair the app begins with
    chosen: str = ""  # the pair that is selected first; empty: the one in use
    held_bytes: int = 0  # memory of the pair in use, which a switch may free
    fetching: Mapping[str, Loading | None] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    asking: str = ""  # the pair whose removal is to be confirmed
    said: str = ""


def pair_lines(
    state: PairListState, at: int, top: int, width: int, height: int, hint: Callable[[str, str], str]
) -> tuple[list[ScreenLine], int]:
    """The lines, and the index of the first visible pair. `hint` gives the text for the key of a binding."""
    if not state.pairs:
        said = visible(state.said)
        return [[(said[a:b].strip(), "warn")] for a, b in wrap(said, width)] if said else [
            [("no pairs are known", "dim")]
        ], 0
    about = _about(state, state.pairs[at], width) if height >= 9 else []
    keys = _keys(state, state.pairs[at], width, hint)
    room = max(1, height - len(about) - 1)
    top = max(0, min(max(min(top, at), at - room + 1), len(state.pairs) - room))
    names = min(24, max(cell_len(pair.name) for pair in state.pairs)) + 2
    lines = [_line(state, pair, index == at, names, width) for index, pair in enumerate(state.pairs)][top : top + room]
    return [*lines, *([] for _ in range(room - len(lines))), *about, keys], top


def _line(state: PairListState, pair: PairInfo, chosen: bool, names: int, width: int) -> ScreenLine:
    mark, role, words = _state(state, pair)
    name = cut(pair.name, names - 1).ljust(names)
    lead: ScreenLine = [(mark + " ", role), (name, "strong")]
    if pair.name in state.fetching:
        line = [*lead, *_progress(state.fetching[pair.name], width - width_of(lead))]
    else:
        line = [*lead, (words, role)]
        if not pair.trouble and pair.fits_in_memory(state.held_bytes):
            line.append((" · fits in memory", "dim"))
    tags = [word for word, name in (("loads at start", state.first), ("in use", state.in_use)) if name == pair.name]
    if tags:
        tag = " " + " · ".join(tags)
        line = [*padded(line, width - len(tag)), (tag, "good" if pair.name == state.in_use else "dim")]
    if chosen:
        return [("".join(text for text, _ in padded(line, width)), "selected")]
    return clip(line, width)


def _state(state: PairListState, pair: PairInfo) -> tuple[str, str, str]:
    """Mark, role and words of a pair's state; problems come first."""
    if pair.name in state.fetching:
        return "⇣", "bonus", "fetching"
    if pair.trouble:
        return "✕", "bad", _TROUBLES[pair.trouble]
    if pair.name in state.failed:
        return "✕", "bad", "not fetched"
    if pair.short_of_memory(state.held_bytes):
        return "!", "warn", "does not fit in memory"
    match pair.state:
        case "ready":
            return "●", "good", "ready" + (f" · {numbers.size(pair.disk_bytes)}" if pair.disk_bytes else "")
        case "found":
            return "◇", "bonus", f"found here · {numbers.size(pair.disk_bytes)}"
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


def _progress(event: Loading | None, width: int) -> ScreenLine:
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


def _about(state: PairListState, pair: PairInfo, width: int) -> list[ScreenLine]:
    """A rule and four lines: the models, what they are, the memory, and what is wrong or worth knowing."""
    models = pair.target + (f" ← {pair.draft}" if pair.draft else "" if pair.unused else " · no draft model")
    models += f" · {pair.unused}" if pair.unused else ""
    lines: list[tuple[str, str]] = [(models, "strong")]
    wrong = pair.refusal or state.failed.get(pair.name, "")
    lines += [(screen_line, "bad") for screen_line in _wrapped(wrong, width)[:2]] if wrong else []
    trained = f"trained drafters: {', '.join(pair.trained)}" if pair.trained else ""
    about = " · ".join(part for part in (pair.summary, trained, pair.remark, pair.notes) if part)
    lines += [(screen_line, "text") for screen_line in _wrapped(about, width)[: 2 if not wrong else 1]] if about else []
    if memory := _memory(state, pair):
        lines.insert(
            min(len(lines), _ABOUT_LINES - 1), (memory, "warn" if pair.short_of_memory(state.held_bytes) else "dim")
        )
    lines = [*lines, *[("", "")] * _ABOUT_LINES][:_ABOUT_LINES]
    return [[("─" * width, "line")], *([(cut(text, width), role)] for text, role in lines)]


def _memory(state: PairListState, pair: PairInfo) -> str:
    if not pair.needed_bytes:
        return ""
    needed = f"about {numbers.size(pair.needed_bytes)} of memory"
    if pair.free_bytes is None:
        return needed
    free = f"{needed} · {numbers.size(pair.free_bytes)} free"
    if state.held_bytes and state.in_use != pair.name:
        free += f" · {numbers.size(state.held_bytes)} held by {state.in_use}"
    return free


def _wrapped(text: str, width: int) -> list[str]:
    lines = [text[a:b].strip() for a, b in wrap(text, width)]
    return [*lines[:1], cut(" ".join(lines[1:]), width)] if len(lines) > 2 else lines


def _keys(state: PairListState, pair: PairInfo, width: int, hint: Callable[[str, str], str]) -> ScreenLine:
    if state.asking:
        return [(cut(f"forget {state.asking}? its weights stay · y yes · n no", width), "warn")]
    if state.said:
        return [(cut(state.said, width), "warn")]
    loads = {"partial": "fetches, then loads", "missing": "fetches, then loads", "found": "adds and loads"}
    keys = [
        hint("pairs.stop", "stops fetching")
        if pair.name in state.fetching
        else hint("pairs.choose", loads.get(pair.state, "loads")),
        hint("pairs.add", "adds"),
        hint("pairs.forget", "forgets") if pair.yours else "",
        hint("pairs.close", "closes"),
    ]
    return [(cut(" · ".join(filter(None, keys)), width), "dim")]
