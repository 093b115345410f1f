"""A place of a reply at which the target could have said something else: what it could have been, as lines to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.round_nodes import drafted_of, proposers_of, shared_nodes
from specchat.engine.protocol.text import between, visible
from specchat.tui.state.turn import Reply
from specchat.tui.text.cells import ScreenLine, clip, cut, padded, paragraph, titled_rule, width_of
from specchat.tui.tree.node_details import DICE, bonus_of, drawn_sentence, parent_of, percent
from specchat.tui.tree.picture import Marks, label

LIKELIEST = 10
"""Tokens that the target is asked for."""

_MOST = 24
_LABEL_CELLS = 20
_NOTES_FROM_CELLS = 46
_MARK_CELLS = 2
_PERCENT_CELLS = 6


@dataclass(frozen=True, slots=True)
class Emitted:
    """One token of a reply, and the text that became readable with it.

    Args:
        token: its number; None where it was not kept.
        origin: `drafted`, `target`, or `given` where another branch had it.
        round: the round that emitted it, where that was kept.
        parent: the node that it follows there.
    """

    token: int | None
    text: str
    origin: str
    round: RoundDone | None = None
    parent: int = 0


def emitted_by(reply: Reply) -> list[Emitted]:
    """The tokens of a reply in order, with their rounds as far as those were kept."""
    found, at = [], 0
    for token, characters in reply.facts.begun:
        found.append(Emitted(token, reply.text[at : at + characters], "given"))
        at += characters
    for round in reply.rounds.list:
        nodes = (0, *round.verdict.path)
        found += [Emitted(p.token, p.text, p.origin, round, node) for p, node in zip(round.pieces, nodes, strict=False)]
    told = "".join(one.text for one in found)
    if found and reply.text.startswith(told):
        rest = reply.text[len(told) :]
        return [*found, Emitted(None, rest, "target")] if rest else found
    if not told or not reply.text.endswith(told):
        return [Emitted(None, text, origin) for text, origin in reply.raw_pieces()]
    # The first rounds were not kept: the text before the others is known by its pieces alone.
    head = between(list(reply.raw_pieces()), 0, len(reply.text) - len(told))
    return [*(Emitted(None, text, origin) for text, origin in head), *found]


def readable_pieces(emitted: Sequence[Emitted]) -> list[tuple[int, str]]:
    """Where each readable piece of a reply begins among its tokens, and its text; the last may have none.

    Several tokens write one piece where each is a part of one character.
    """
    pieces: list[tuple[int, str]] = []
    first = 0
    for place, one in enumerate(emitted):
        if one.text or place == len(emitted) - 1:
            pieces.append((first, one.text))
            first = place + 1
    return pieces


@dataclass(frozen=True)
class Fork:
    """A place of a reply.

    Args:
        before: the tokens before it; guesses that were not kept come last.
        drawn: the token that was drawn there; None where the target went elsewhere.
        round: whose tree has guesses for the place, behind node `parent`; None where it was not kept.
    """

    before: tuple[Emitted, ...]
    drawn: Emitted | None
    round: RoundDone | None = None
    parent: int = 0

    @property
    def tokens(self) -> list[int] | None:
        """The tokens before it; None where one is not known."""
        known = [one.token for one in self.before if one.token is not None]
        return known if len(known) == len(self.before) else None

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.before if one.text]

    @property
    def by_texts(self) -> Fork:
        """The same place for a model with other tokens, to which the round means nothing."""
        before = tuple(replace(one, token=None) for one in self.before)
        return Fork(before, None if self.drawn is None else replace(self.drawn, token=None))


def fork_at(emitted: Sequence[Emitted], place: int) -> Fork:
    """The place of one token of a reply."""
    drawn = emitted[place]
    return Fork(tuple(emitted[:place]), drawn, drawn.round, drawn.parent)


def fork_at_node(emitted: Sequence[Emitted], round: RoundDone, node: int) -> Fork | None:
    """The place of a node of a round; the root's is that of the token before. None: it is no token of this reply."""
    first = next((place for place, one in enumerate(emitted) if one.round is round), None)
    if first is None or (node == 0 and first == 0) or (node > len(round.tree.tokens) - (bonus_of(round) is None)):
        return None
    if node == 0:
        return fork_at(emitted, first - 1)
    way: list[int] = []
    at = parent = parent_of(round, node)
    while at > 0:
        way.insert(0, at)
        at = round.tree.parents[at]
    kept = shared_nodes(way, round.verdict.path)
    left = [Emitted(round.tree.tokens[one], round.tree.texts[one], "drafted") for one in way[kept:]]
    before = (*emitted[: first + kept], *left)
    drawn = emitted[first + kept] if not left and kept < len(round.pieces) else None
    return Fork(before, drawn, round, parent)


@dataclass(frozen=True)
class Alternative:
    """One token that could stand at a place.

    Args:
        logprob: the target's; None where it was not asked.
        drafted: the probability that a drafter gave it; None where that is not known.
        proposers: who guessed it; empty where nobody did.
        forbidden: what the reply is held to does not allow it.
    """

    token: int | None
    text: str
    logprob: float | None = None
    drafted: float | None = None
    proposers: str = ""
    drawn: bool = False
    forbidden: bool = False


def alternatives(fork: Fork, answer: RoundDone | None = None) -> list[Alternative]:
    """What could stand at a place, the likeliest first: the round's guesses, what was drawn, the target's likeliest.

    Args:
        answer: a round that was asked for with `top_logprobs` and began at this place.
    """
    found: dict[int, Alternative] = {}
    unknown: list[Alternative] = []
    likely = answer.pieces[0].likely if answer is not None and answer.pieces else None
    if answer is not None and likely is not None:
        walls = {one.token for one in answer.tree.forbidden if one.parent == 0}
        for one in likely.top:
            found[one.token] = Alternative(one.token, _spelled(one.spelling), one.logprob, forbidden=one.token in walls)
    if fork.round is not None:
        _add_guesses(found, fork.round, fork.parent)
    if (drawn := fork.drawn) is not None:
        token, text = drawn.token, drawn.text
        if token is None:  # an old reply, of which only the text was kept
            token = next((one.token for one in found.values() if one.text == text), None)
        if token is None:
            unknown.append(Alternative(None, text, drawn=True))
        else:
            logprob: float | None = None
            if fork.round is not None:  # a token that is no guess of the round is the bonus
                verdict = fork.round.verdict
                text = text or (verdict.bonus_text if drawn.origin == "target" else "")
                logprob = verdict.bonus_logprob if (verdict.path or [0])[-1] == fork.parent else None
            found[token] = replace(found.get(token, Alternative(token, text, logprob)), drawn=True)
    known = [*found.values(), *unknown]
    ordered = sorted(known, key=lambda one: (math.inf if one.logprob is None else -one.logprob, -(one.drafted or 0.0)))
    return ordered[:_MOST] if any(one.drawn for one in ordered[:_MOST]) else [*ordered[: _MOST - 1], *ordered[-1:]]


def _add_guesses(found: dict[int, Alternative], round: RoundDone, parent: int) -> None:
    tree, drafted, proposers = round.tree, drafted_of(round), proposers_of(round)
    for node in range(1, len(tree.tokens)):
        if tree.parents[node] == parent:
            token = tree.tokens[node]
            known = found.get(token, Alternative(token, tree.texts[node], tree.target_logprob[node]))
            names = "+".join(proposers.get(node, [])) or "a drafter"
            found[token] = replace(known, drafted=drafted.get(node), proposers=names)
    for wall in tree.forbidden:
        if wall.parent == parent:
            known = found.get(wall.token, Alternative(wall.token, wall.text))
            found[wall.token] = replace(known, proposers=wall.proposer, forbidden=True)


def _spelled(data: bytes) -> str:
    """Bytes as text; those that form no whole character read `⟨e2⟩`."""
    text = ""
    while data:
        try:
            return text + data.decode()
        except UnicodeDecodeError as error:
            broken = "".join(f"⟨{byte:02x}⟩" for byte in data[error.start : error.end])
            text, data = text + data[: error.start].decode() + broken, data[error.end :]
    return text


def before_line(fork: Fork, width: int) -> ScreenLine:
    """The end of the text before the place."""
    said = "".join(one.text for one in fork.before[-4 * width :])
    text = visible(" ".join(said.split(" ")).replace("\n", " ⏎ "))
    while text and width_of([(text, "")]) > width - 3:
        text = text[max(1, (len(text) - width) // 2) :]
    return clip([("…" if text and len(text) < len(said) else "", "dim"), (text, "text"), ("▁", "target")], width)


def alternative_lines(
    rows: Sequence[Alternative], chosen: int, width: int, height: int, marks: Marks
) -> tuple[int, list[ScreenLine]]:
    """The first in view, and a line for each from there: mark, token, bar, the target's probability, who guessed it."""
    first = max(0, min(chosen - height // 2, len(rows) - height))
    most = min(_LABEL_CELLS, max(6, width // 3))
    widest = max((width_of([(label(one.text, marks, most), "")]) for one in rows), default=0)
    shown = enumerate(rows[first : first + height], first)
    return first, [_row(one, at == chosen, min(most, widest) + 1, width, marks) for at, one in shown]


def _row(one: Alternative, chosen: bool, cells: int, width: int, marks: Marks) -> ScreenLine:
    """A line with the token in so many cells."""
    role = "forbidden" if one.forbidden else "target" if one.drawn and not one.proposers else "text"
    mark, mark_role = (marks.forbidden, "forbidden") if one.forbidden else (" ", "")
    if one.drawn:
        mark, mark_role = (marks.accepted, "accepted") if one.proposers else (marks.bonus, "bonus")
    elif one.proposers and not one.forbidden:
        mark, mark_role = marks.rejected, "crossed"
    line = [(mark, mark_role), (" ", ""), *padded([(label(one.text, marks, cells - 1), role)], cells)]
    note_cells = min(34, max(16, width // 3 + 3)) if width >= _NOTES_FROM_CELLS else 0
    rest = max(0, width - _MARK_CELLS - cells - _PERCENT_CELLS - note_cells - 1)
    share = math.exp(min(0.0, one.logprob)) if one.logprob is not None else 0.0
    said = percent(one.logprob) if one.logprob is not None else ""
    line += [(marks.bar(share, rest), "bar"), (said.rjust(_PERCENT_CELLS), "text" if one.drawn else "dim"), (" ", "")]
    line = padded([*line, (cut(_note(one, short=note_cells < 24), note_cells), "dim")], width)
    return [(text, "selected") for text, _ in line] if chosen else line


def _note(one: Alternative, *, short: bool) -> str:
    """`forbidden`, `drawn`, `hydra guessed 31 %`: what is known besides its probability."""
    if one.forbidden:
        by = "" if short else "guessed by "
        return "forbidden" + (f", {by}{visible(one.proposers)}" if one.proposers else "")
    guess = ""
    if one.proposers:
        share = "" if one.drafted is None else f" {percent(math.log(max(one.drafted, 1e-9)))}"
        guess = f"{visible(one.proposers)}{'' if short else ' guessed'}{share}"
    return ", ".join(part for part in ("drawn" if one.drawn else "", guess) if part)


def sentence(rows: Sequence[Alternative], chosen: int, marks: Marks, temperature: float | None) -> str:
    """What became of the chosen token, in words."""
    one = rows[chosen]
    drawn = next((row for row in rows if row.drawn), None)
    said = label(one.text, marks, _LABEL_CELLS)
    if one.forbidden:
        had = f"; the target gave it {percent(one.logprob)}" if one.logprob is not None else ""
        return f"{said} does not fit what the reply is held to{had}"
    if drawn is None:
        has = f"; here {said} would have {percent(one.logprob)}" if one.logprob is not None else ""
        return f"not reached: the target went elsewhere{has}"
    if one is drawn:  # compared with the likeliest, if it is not that itself
        one = next((row for row in rows if not row.forbidden), drawn)
    told, other = ((label(row.text, marks, _LABEL_CELLS), row.logprob) for row in (drawn, one))
    return drawn_sentence(temperature, told, None if one is drawn else other)


def explanation_lines(
    rows: Sequence[Alternative], chosen: int, width: int, marks: Marks, temperature: float | None
) -> list[ScreenLine]:
    """Below the alternatives: the sentence about the chosen one, and what decides a draw."""
    lines: list[ScreenLine] = [titled_rule("this token", width)]
    if rows:
        lines += paragraph(sentence(rows, chosen, marks, temperature), width, "text")
    return lines + paragraph(DICE, width, "dim") if temperature else lines
