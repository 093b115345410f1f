"""What the app knows about a pair before it is loaded, and the list of pairs with details of the chosen one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.cells import cell_len

from specchat.engine.protocol.events import Loading
from specchat.engine.protocol.text import visible
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, bar, clip, cut, padded, paragraph, width_of, wrapped_lines


@dataclass(frozen=True)
class PairInfo:
    """One target and what drafts for it, whether its weights are on this machine, and whether they would run on it.

    `draft` names the draft models that its settings use. `unused` are those that they do not, in words: these are
    neither fetched nor held, and no size counts them.

    `found` is one that another program keeps here and that was not added yet. Sizes are None where they are unknown.
    `refusal` says why the pair cannot work and `trouble` what that is about; `remark` says why it may be slow.
    """

    name: str
    target: str
    draft: str | None = None
    state: Literal["ready", "unverified", "partial", "missing", "elsewhere", "found"] = "ready"
    download_bytes: int | None = 0
    summary: str = ""
    notes: str = ""
    disk_bytes: int = 0
    needed_bytes: int | None = None
    free_bytes: int | None = None
    trouble: Literal["", "files", "shape", "tokens"] = ""
    refusal: str = ""
    remark: str = ""
    trained: tuple[str, ...] = ()  # drafters trained for the target, in words
    unused: str = ""
    yours: bool = False  # defined in the user's own models.toml
    parameters: int = 0  # of the target; 0: not known
    licence: str = ""
    read_bytes: int = 0  # of the target's weights, which a processor reads for each token; 0: not known
    plain_tokens_per_s: float = 0.0  # without guesses, by its passes as they were timed here; 0: not timed

    def fits_in_memory(self, held_bytes: int = 0) -> bool:
        """Whether it is known to fit."""
        return bool(self.needed_bytes) and self.free_bytes is not None and not self.short_of_memory(held_bytes)

    def short_of_memory(self, held_bytes: int = 0) -> bool:
        """Whether it would not fit, even when the pair in use, which holds so much, has gone."""
        if self.needed_bytes is None or self.free_bytes is None:
            return False
        return self.needed_bytes > self.free_bytes + held_bytes


@dataclass(frozen=True)
class Offer:
    """What the empty page says of a small model: how large it is, and the best pair that fits this machine, if any.

    `fetch_bytes` is 0 for a pair that is here already; `tokens_per_s`, of plain decoding, is 0 where it is not known.
    """

    size: str  # 135M
    name: str = ""
    fetch_bytes: int = 0
    tokens_per_s: float = 0.0


_TROUBLES = {"files": "cannot be read", "shape": "unsupported shape", "tokens": "tokenizers differ"}
ABOUT_LINES, MOST_ABOUT_LINES = 4, 6
"""Lines about the chosen pair; more of them only where some pair needs them and the list stays long enough."""

HIGH_LINES = 14
"""Height from which on there is room for more lines about the chosen pair."""

_WITH_PARAMETERS = 64
"""Width from which on a line says how large the model is."""

SHORTEST_NAMES = 16
"""Cells for names in a narrow list; in a wide one they get a third of it."""


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
    query: str | None = None  # what is searched for; None where nothing is
    plain_tokens_per_s: float = 0.0  # of the pair in use, by its last reply's plain rounds; 0: not known

    @property
    def shown(self) -> Sequence[PairInfo]:
        """The pairs with every word that is searched for."""
        words = (self.query or "").casefold().split()
        return [pair for pair in self.pairs if all(word in _searched(pair) for word in words)] if words else self.pairs

    def expected_tokens_per_s(self, pair: PairInfo) -> float | None:
        """Of plain decoding on this machine; None where neither its own passes nor the pair in use tell.

        A processor reads all weights for every token, so that speeds go as their bytes do.
        """
        if pair.name == self.in_use and self.plain_tokens_per_s:
            return self.plain_tokens_per_s
        if pair.plain_tokens_per_s:
            return pair.plain_tokens_per_s
        known = next((one for one in self.pairs if one.name == self.in_use), None)
        speed = known and (self.plain_tokens_per_s or known.plain_tokens_per_s)
        if not (known and speed and known.read_bytes and pair.read_bytes):
            return None
        return speed * known.read_bytes / pair.read_bytes


def _searched(pair: PairInfo) -> str:
    size = numbers.parameters(pair.parameters) if pair.parameters else ""
    said = (pair.name, pair.target, pair.draft or "", pair.summary, pair.notes, pair.licence, size)
    return " ".join(said).casefold()


def pair_lines(
    state: PairListState, at: int, top: int, width: int, height: int, hint: Callable[[str, str], str]
) -> tuple[list[ScreenLine], int]:
    """The lines, and the index of the first visible pair. `hint` gives the text for the key of a binding."""
    if not state.pairs:
        return paragraph(visible(state.said), width, "warn") if state.said else [[("no pairs are known", "dim")]], 0
    shown = state.shown
    if not shown:
        return [[(cut("no pair has all of these words", width), "dim")], _search_line(state, width, hint)], 0
    longest = max(cell_len(pair.name) for pair in state.pairs)
    names = min(longest, max(SHORTEST_NAMES, width // 3))
    about = _rule_and_about(state, at, names, width, height) if height >= 9 else []
    keys = _keys(state, shown[at], width, hint)
    room = max(1, height - len(about) - 1)
    top = max(0, min(max(min(top, at), at - room + 1), len(shown) - room))
    lines = [_line(state, pair, index == at, names, width) for index, pair in enumerate(shown)][top : top + room]
    return [*lines, *([] for _ in range(room - len(lines))), *about, keys], top


def _line(state: PairListState, pair: PairInfo, chosen: bool, names: int, width: int) -> ScreenLine:
    mark, role, *words = _state(state, pair)
    name = cut(pair.name, names)
    lead: ScreenLine = [(mark + " ", role), (name + " " * (names + 2 - cell_len(name)), "strong")]
    if width >= _WITH_PARAMETERS and any(one.parameters for one in state.pairs):
        lead.append((f"{numbers.parameters(pair.parameters) if pair.parameters else '':>4}  ", "dim"))
    room = width - width_of(lead)
    fits = not pair.trouble and pair.fits_in_memory(state.held_bytes)
    tags = (("loads at start", state.first), ("in use", state.in_use))
    said, memory, tag = _worded(words, fits, [word for word, name in tags if name == pair.name], room)
    line: ScreenLine = [*lead, (said, role), *([(memory, "dim")] if memory else [])]
    if pair.name in state.fetching:
        line = [*lead, *_progress(state.fetching[pair.name], room - len(tag))]
    if tag:
        line = [*padded(line, width - len(tag)), (tag, "good" if pair.name == state.in_use else "dim")]
    if chosen:
        return [("".join(text for text, _ in padded(line, width)), "selected")]
    return clip(line, width)


def _worded(words: list[str], fits: bool, tags: list[str], room: int) -> tuple[str, str, str]:
    """The state, that the pair fits in memory and what it is used for, in the longest words that are whole."""
    tag = " " + " · ".join(tags) if tags else ""
    shorter = tag.replace("loads at start", "at start")
    last = " " + shorter.rpartition(" · ")[2].strip() if tags else ""
    memory, shorter_memory = (" · fits in memory", " · fits") if fits else ("", "")
    wordings = [
        (words[0], memory, tag),
        (words[0], shorter_memory, tag),
        (words[0], shorter_memory, shorter),
        (words[-1], shorter_memory, shorter),
        (words[-1], shorter_memory, last),
        (words[-1], "", last),
    ]
    return next((wording for wording in wordings if len("".join(wording)) <= room), wordings[-1])


def _state(state: PairListState, pair: PairInfo) -> tuple[str, ...]:
    """Mark, role and words of a pair's state, and shorter words for little room; problems come first."""
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
            return "●", "good", "ready" + (f" · {numbers.size(pair.disk_bytes)}" if pair.disk_bytes else ""), "ready"
        case "found":
            return "◇", "bonus", f"found here · {numbers.size(pair.disk_bytes)}", "found here"
        case "unverified":
            return "◐", "warn", "here · verified when loaded", "here"
        case "partial":
            return "◐", "warn", f"partly here · {_left(pair)}", _left(pair)
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
    done = bar(share, max(6, min(20, width - 50)))
    line: ScreenLine = [(done, "bar"), (f" {numbers.percent(share):>5} ", "text")]
    fitting = (words for words in figures.wordings if len(words) <= width - width_of(line))
    return [*line, (next(fitting, figures.wordings[-1]), "dim")]


def _rule_and_about(state: PairListState, at: int, names: int, width: int, height: int) -> list[ScreenLine]:
    """A rule and the chosen pair in words; with the same number of lines whichever pair is chosen."""
    room = MOST_ABOUT_LINES if height >= HIGH_LINES else ABOUT_LINES
    abouts = [_about(state, pair, names, width, room) for pair in state.shown]
    count = max(ABOUT_LINES, *map(len, abouts))
    lines = [*abouts[at], *[("", "")] * count][:count]
    return [[("─" * width, "line")], *([(text, role)] for text, role in lines)]


def _about(state: PairListState, pair: PairInfo, names: int, width: int, room: int) -> list[tuple[str, str]]:
    """The models, what is wrong or worth knowing, and the memory; in little room only the first of these is cut."""
    models = pair.target + (f" ← {pair.draft}" if pair.draft else "" if pair.unused else " · no draft model")
    models += f" · {pair.unused}" if pair.unused else ""
    models = f"{pair.name}: {models}" if cell_len(pair.name) > names else models  # the list has cut it
    wrong = _wrapped(pair.refusal or state.failed.get(pair.name, ""), width)
    trained = f"trained drafters: {', '.join(pair.trained)}" if pair.trained else ""
    about = " · ".join(part for part in (pair.summary, trained, pair.remark, pair.licence, pair.notes) if part)
    memory = _wrapped(_memory(state, pair), width)
    head = _wrapped(models, width)
    if len(head + wrong + memory) > room:
        head = [cut(models, width)]
    left = min(1 if wrong else 3, room - len(head + wrong + memory))
    role = "warn" if pair.short_of_memory(state.held_bytes) else "dim"
    parts = ((head, "strong"), (wrong, "bad"), (_wrapped(about, width, left), "text"), (memory, role))
    return [(line, role) for lines, role in parts for line in lines][:room]


def _memory(state: PairListState, pair: PairInfo) -> str:
    if not pair.needed_bytes:
        return ""
    said = f"about {numbers.size(pair.needed_bytes)} of memory"
    if pair.free_bytes is not None:
        said += f" · {numbers.size(pair.free_bytes)} free"
        if state.held_bytes and state.in_use != pair.name:
            said += f" · {numbers.size(state.held_bytes)} held by {state.in_use}"
    if (speed := state.expected_tokens_per_s(pair)) is not None:
        said += f" · about {speed:.{0 if speed >= 9.5 else 1}f} tok/s without guesses"
    return said


def _wrapped(text: str, width: int, most: int = 2) -> list[str]:
    """The text in at most so many lines, the last one cut."""
    return wrapped_lines(text, width, most) if text and most > 0 else []


def _search_line(state: PairListState, width: int, hint: Callable[[str, str], str]) -> ScreenLine:
    said = f"search: {state.query}▏"
    ends = hint("pairs.close", "ends the search")
    return [(cut(said, width), "text"), (f"  {ends}" if cell_len(said) + len(ends) + 2 <= width else "", "dim")]


def _keys(state: PairListState, pair: PairInfo, width: int, hint: Callable[[str, str], str]) -> ScreenLine:
    if state.asking:
        return [(cut(f"forget {state.asking}? its weights stay · y yes · n no", width), "warn")]
    if state.said:
        return [(cut(state.said, width), "warn")]
    if state.query is not None:
        return _search_line(state, width, hint)
    loads = {"partial": "fetches, then loads", "missing": "fetches, then loads", "found": "adds and loads"}
    known = {"search": "searches", "add": "adds", **({"forget": "forgets"} if pair.yours else {}), "close": "closes"}
    first = {"stop": "stops fetching"} if pair.name in state.fetching else {"choose": loads.get(pair.state, "loads")}
    keys = [key for id, does in (first | known).items() if (key := hint(f"pairs.{id}", does))]
    while len(keys) > 2 and len(" · ".join(keys)) > width:
        keys.pop(1)
    return [(cut(" · ".join(keys), width), "dim")]
