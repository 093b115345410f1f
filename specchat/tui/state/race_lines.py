"""A race and a short benchmark as lines: what is compared, the progress, the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specchat.engine.client.model_race import MODEL_SIDES, ModelRace
from specchat.engine.client.race import Kind, Race, Side, race_result, settings_line
from specchat.engine.protocol.text import visible
from specchat.tui.state.races import ALL, CategoryFigures, Playback, RaceSeries
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, bar, clip, cut, padded, width_of, wrapped_lines

NAMES: dict[Side, str] = {"plain": "plain decoding", "speculative": "speculation"}
MARKS: dict[Kind, tuple[str, str]] = {
    "same": ("✓ ", "good"), "tie": ("≈ ", "bonus"), "law": ("≈ ", "bonus"), "open": ("≈ ", "bonus"),
    "fault": ("✕ ", "bad"),
}  # fmt: skip
"""The mark of each result of the comparison, and its role."""

_OUTCOME = "★ "
_LABEL = 16
_ROLES: dict[Side, str] = {"plain": "target", "speculative": "drafted", "own": "drafted", "other": "target"}


def head_lines(race: Race, pair: str, dtype: str, chosen: Mapping[str, Any], width: int) -> list[ScreenLine]:
    """The question, and the settings that are compared with plain decoding."""
    settings = settings_line(race.settings or chosen, race.seed, dtype)
    return _head("race ", race, f"{visible(pair)} · {settings}", width)


def model_head_lines(race: ModelRace, settings: Mapping[str, Any], width: int) -> list[ScreenLine]:
    """The question, and what is the same for both models."""
    warmth = settings.get("temperature", 0)
    how = f"temperature {warmth:g}" if warmth else "greedy"
    same = f"{how} · up to {settings.get('max_tokens', 0)} tokens · seed {race.seed}"
    return _head("race of two models ", race, f"{same} · each guesses in its pair's own way", width)


def _head(title: str, race: Race | ModelRace, compared: str, width: int) -> list[ScreenLine]:
    asked = cut(" ".join(visible(race.messages[-1].content).split()), max(1, width - len(title) - 2))
    return [[(title, "accepted"), ("❯ ", "dim"), (asked, "strong")], [(cut(compared, width), "dim")]]


def column_title(race: ModelRace, side: Side) -> str:
    """The model, and once it has begun, who guesses for it."""
    name, begun = visible(race.names[side]), race.heats[side].started
    if begun is None:
        return name
    plain = begun.settings.get("controller") == "off" or not begun.settings.get("nodes")
    return f"{name} · {'no guesses' if plain else begun.settings.get('drafter', '')}"


def bar_lines(playback: Playback, width: int) -> list[ScreenLine]:
    """One bar for each side: the tokens it has written, on one scale, and a line to where the reply ends."""
    return [_bar_line(playback, side, width) for side in playback.race.heats]


def _bar_line(playback: Playback, side: Side, width: int) -> ScreenLine:
    race, elapsed = playback.race, playback.elapsed(side)
    tokens, seen = playback.tokens(side), playback.shown_rounds(side)
    figures = f"{tokens:>6,} tok {elapsed:>7.2f} s" if tokens else " " * 20
    name = visible(race.names[side]) if isinstance(race, ModelRace) else NAMES[side]
    if width >= 60:
        figures += f" {numbers.rate(tokens / elapsed):>5} tok/s" if tokens and elapsed > 0 else " " * 12
        figures += (f"  τ {tokens / seen:.1f}" if seen and side != "plain" else "").ljust(7)
    elif isinstance(race, ModelRace):  # without room for a bar, the speed and τ
        figures = f"{numbers.rate(tokens / elapsed)} tok/s  τ {tokens / seen:.1f}" if seen and elapsed > 0 else ""
    else:
        name = side
    cells = _LABEL if width >= 60 else 12
    label = "".join(text for text, _ in padded([(cut(name, cells - 1), "")], cells))
    room = width - len(label) - len(figures) - 1
    line: ScreenLine = [(label, "strong" if race.running == side else "text")]
    if room >= 4:
        full = playback.full_bar_tokens
        done = bar(tokens / full, room).rstrip()
        ahead = "" if isinstance(race, ModelRace) else "╌" * (round(playback.length / full * room) - len(done))
        line += [(done, _ROLES[side]), (ahead, "line"), (" " * (room - len(done) - len(ahead) + 1), "")]
    return clip([*line, (figures, "text")], width)


def status_lines(playback: Playback, dtype: str, width: int, height: int) -> list[ScreenLine]:
    return [line for status in _status(playback, dtype) for line in _wrapped(*status, width)][:height]


def _status(playback: Playback, dtype: str) -> list[tuple[str, str, str]]:
    """The lines of the state, each as (mark, text, role of the mark)."""
    race = playback.race
    match race.phase:
        case "loading":
            assert isinstance(race, ModelRace), "a race of methods has nothing to load"
            return [("◌ ", _loading(race), "dim")]
        case "failed":
            return [("✕ ", visible(race.problem), "bad")]
        case "stopped":
            return [("■ ", "stopped", "dim")]
        case "warming":
            done, total = race.prefilled
            read = f" · reading the prompt, {done:,} of {total:,} tokens" if total else ""
            return [("◌ ", f"warming up: a few tokens of each that are not counted{read}", "dim")]
        case "racing":
            scale = f"a full bar is {playback.full_bar_tokens} tokens"
            return [("● ", f"both write by turns, each on its own clock; {scale}", "accepted")]
        case _ if not playback.finished:
            return [("● ", "all is written; the slower side goes on at its recorded pace", "target")]
        case "comparing":
            return [("◌ ", "the tokens differ; asking the engine by what margin", "dim")]
    if isinstance(race, ModelRace):
        return [(_OUTCOME, _models_outcome(race), "bonus"), ("≈ ", _MODELS_CAVEAT, "dim")]
    found = race_result(race, dtype)
    mark, role = MARKS[found.kind]
    return [(_OUTCOME, _outcome(race), "bonus"), (mark, found.line, role)]


def _loading(race: ModelRace) -> str:
    """`loading qwen-coder beside smol, which stays: reading qwen2.5-coder 43 % about 2 s left`."""
    lead = f"loading {visible(race.names['other'])} beside {visible(race.names['own'])}, which stays as it is"
    if race.loading is None:
        return lead
    what, share, figures = numbers.loading(race.loading)
    done = numbers.percent(share) if share is not None else ""
    return f"{lead}: " + " ".join(part for part in (visible(what), done, figures.wordings[0]) if part)


_MODELS_CAVEAT = (
    "two models write two texts, so neither speed says how much guessing gains; "
    "neither reply is kept: the chat stays as it was"
)


def _models_outcome(race: ModelRace) -> str:
    """`smol 61.2 tok/s, τ 2.90 · qwen-coder 11.3 tok/s, τ 2.10`."""
    return " · ".join(
        f"{visible(race.names[side])} {numbers.rate(heat.tokens_per_s)} tok/s, τ\u00a0{heat.acceptance_length:.2f}"
        for side, heat in race.heats.items()
    )


def _outcome(race: Race) -> str:
    """`speculation won by 1.84 s · 2.30× plain decoding · τ 3.41`."""
    ratio = f"{race.ratio:.2f}× plain decoding · τ\u00a0{race.speculative.acceptance_length:.2f}"
    return f"{_winner(race.plain.decode_s, race.speculative.decode_s)} · {ratio}"


def _winner(plain_s: float, speculative_s: float) -> str:
    """Who was done first, and by how many seconds."""
    ahead_s = round(round(plain_s, 2) - round(speculative_s, 2), 2)  # of the times as they are shown
    if not ahead_s:
        return "a dead heat"
    name = NAMES["speculative" if ahead_s > 0 else "plain"]
    return f"{name} won by {abs(ahead_s):.2f} s"


def outcome_text(playback: Playback, pair: str, dtype: str) -> str:
    """The whole result as lines to copy."""
    race = playback.race
    if isinstance(race, ModelRace):
        lines = [" | ".join(column_title(race, side) for side in MODEL_SIDES) + f" · seed {race.seed}"]
    else:
        lines = [f"{pair} · {settings_line(race.settings, race.seed, dtype)}"]
    return "\n".join([*lines, *_texts(bar_lines(playback, 60)), *(text for _, text, _ in _status(playback, dtype))])


def _texts(lines: Sequence[ScreenLine]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def keys_line(left: str, right: str, width: int) -> ScreenLine:
    gap = width - width_of([(left, ""), (right, "")])
    return clip([(left, "dim"), (" " * max(1, gap), ""), (right, "dim")], width)


_CAVEAT = "few and short replies; `specchat bench` measures more, with intervals"
_HEADS = ("plain tok/s", "tok/s", "× plain", "τ", "same text")
_WIDE = (13, 9, 9, 7, 11)
_NARROW = (8, 7, 6)
_CATEGORY_CELLS = 12


def progress_lines(
    series: RaceSeries, pair: str, dtype: str, settings: Mapping[str, Any], width: int
) -> list[ScreenLine]:
    compared = f"{visible(pair)} · {settings_line(settings, series.seed, dtype)}"
    lead = f"{len(series.finished_races)} of {len(series.questions)} questions"
    if series.seconds is not None:
        lead = f"{len(series.finished_races)} questions, for {numbers.seconds(series.seconds)}"
    done = bar(series.progress, max(4, width - len(lead) - 2))
    return [[(cut(compared, width), "dim")], [(done, "bar"), ("  ", ""), (lead, "text")], _state_line(series, width)]


def table_lines(series: RaceSeries, width: int) -> list[ScreenLine]:
    groups = series.groups()
    if not groups:
        return [[("the first two replies are being written", "dim")]]
    narrow = width < _CATEGORY_CELLS + sum(_WIDE)
    heads = ("plain", "tok/s", "×") if narrow else _HEADS
    lines = [_line("", heads, "dim", narrow)]
    for group in groups:
        cells = _cells(group)[: len(heads)]
        lines.append(_line(group.category, cells, "strong" if group.category == ALL else "text", narrow))
    return [clip(line, width) for line in lines]


def outcome_lines(series: RaceSeries, width: int) -> list[ScreenLine]:
    if series.problem:
        return _wrapped("✕ ", visible(series.problem), "bad", width)
    groups = series.groups()
    if not series.ended or not groups:
        return [[("stopped before anything was measured", "dim")]] if series.stopped else []
    kind, line = _proof(groups[-1])
    mark, role = MARKS[kind]
    return _wrapped(mark, line, role, width)


def series_text(series: RaceSeries, pair: str, dtype: str, settings: Mapping[str, Any]) -> str:
    """The whole result as lines to copy."""
    lines = _texts([*table_lines(series, 80), *outcome_lines(series, 1000)])
    return "\n".join([f"{pair} · {settings_line(settings, series.seed, dtype)}", *lines])


def _state_line(series: RaceSeries, width: int) -> ScreenLine:
    if series.stopped:
        return [("■ ", "dim"), ("stopped; this is what was measured", "text")]
    if series.ended:
        return clip([("★ ", "bonus"), (_CAVEAT, "dim")], width)
    doing = "warming up" if series.race.phase == "warming" else "comparing"
    if running := series.race.running:
        doing = f"{NAMES[running]} writes"
    asked = " ".join(series.question.prompt.split())
    return clip([("● ", "accepted"), (f"{doing} · ", "text"), (asked, "dim")], width)


def _cells(group: CategoryFigures) -> Sequence[str]:
    return (
        numbers.rate(group.plain_tokens_per_s),
        numbers.rate(group.tokens_per_s),
        f"{group.ratio:.2f}",
        f"{group.acceptance_length:.2f}",
        f"{group.same} of {group.races}",
    )


def _line(label: str, cells: Sequence[str], role: str, narrow: bool) -> ScreenLine:
    widths = _NARROW if narrow else _WIDE
    text = "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return [(cut(visible(label), _CATEGORY_CELLS - 1).ljust(_CATEGORY_CELLS), role), (text, role)]


def _proof(everything: CategoryFigures) -> tuple[Kind, str]:
    """Whether the texts agree, in one sentence."""
    same = f"{everything.same} of {everything.races} replies are plain decoding's, token by token"
    if everything.same == everything.races:
        return "same", same
    if not everything.promised:
        return "law", f"{same}; this rule promises the same distribution, not the same text"
    if everything.sound:
        left = everything.races - everything.same
        return "tie", f"{same}; {left} left at a near-tie"
    return "fault", f"{same}, and the others leave it where no rounding explains it; please report this"


def _wrapped(mark: str, text: str, role: str, width: int) -> list[ScreenLine]:
    pieces, strength = wrapped_lines(text, max(8, width - 2)), "strong" if mark == _OUTCOME else "text"
    return [[("  ", "") if place else (mark, role), (piece, strength)] for place, piece in enumerate(pieces)]
