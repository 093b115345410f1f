"""One node of a round: its details, the layers in which its token was decided, and the way to its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.round_nodes import drafted_of, heat_of, lens_at, probability_of, proposers_of
from specchat.engine.protocol.round_parts import Source
from specchat.tui.text.cells import ScreenLine, clip, paragraph, spark, width_of
from specchat.tui.tree.picture import Marks, label, picture_of

_PARTS = {
    "system": "the system message", "user": "your message {}", "assistant": "reply {}", "reply": "this reply",
    "prompt": "the prompt", "datastore": "a datastore",
}  # fmt: skip
DICE = "dice decide, by these percentages; without guesses they would have fallen the same"

_KINDS = {"iid": "drawn at random", "wor": "drawn at random, none twice", "point": "picked, not drawn at random"}


def details(
    round: RoundDone, node: int, width: int, marks: Marks, temperature: float | None = None
) -> list[ScreenLine]:
    """The token, why it was accepted or not, its probabilities and its proposers; important lines first.

    Args:
        temperature: the one that the target's tokens were drawn with, where the rule keeps only what was drawn.
    """
    picture = picture_of(round, marks)
    drawn = picture.spine[-1] if node == bonus_of(round) else picture.nodes[node]
    glyph, role = drawn.mark(marks)
    text = label(round.verdict.bonus_text if node == bonus_of(round) else round.tree.texts[node], marks, 24)
    head: ScreenLine = [(glyph, role.partition("#")[0]), (" " if glyph else "", ""), (text, drawn.shown_state)]
    screen_lines = [_with_probabilities(head, *_probabilities(round, node), width)]
    number = f"token\u00a0{_token(round, node)} ·\u00a0depth\u00a0{depth_of(round, node)} ·\u00a0node\u00a0{node}"
    screen_lines += paragraph(reason_of(round, node, marks, temperature), width, "text")
    for strip, decided in strip_lines(round, parent_of(round, node), width, marks):
        screen_lines += [strip, *paragraph(decided, width, "text")]
    about = [_origin(round, node), number]
    if temperature and round.verdict.reasons[node : node + 1] == ["rejected"]:
        about.insert(1, DICE)
    screen_lines += [line for told in about if told for line in paragraph(told, width, "dim")]
    return [clip(screen_line, width) for screen_line in screen_lines]


def _with_probabilities(head: ScreenLine, target: str, draft: str, width: int) -> ScreenLine:
    """The line with the probabilities at the right edge, in full, abbreviated or left out as the width allows."""
    parts = [("target p ", "p ", target), ("draft q ", "q ", draft)]
    for form in (0, 1):
        said = " · ".join(part[form] + part[2] for part in parts if part[2])
        gap = width - width_of(head) - len(said)
        if said and gap >= 2:
            return [*head, (" " * gap, ""), (said, "dim")]
    return head


def reason_of(round: RoundDone, node: int, marks: Marks, temperature: float | None = None) -> str:
    """Why this node was accepted or not, in words: `temperature 0.5 drew ·stood (7 %); ·was had 64 %`."""
    if node == 0:
        return "the last token before this round; the tree grows from it"
    if node == bonus_of(round):
        return "the target's own token, which ends the round"
    verdict = round.verdict
    match "accepted" if node in verdict.path else verdict.reasons[node]:
        case "accepted":
            source = source_of(round, node)
            return "the target wrote it too" if source is None else f"copied from {_place(source, marks)}"
        case "rejected":
            return _rejection(round, node, marks, temperature)
        case "pruned":
            wanted = _token(round, node) == verdict.bonus and parent_of(round, node) == (verdict.path or [0])[-1]
            return "pruned: dropped in the middle of the target's pass" + ", though the target wrote it" * wanted
        case "cut":
            return "cut: accepted, but the reply ended before it"
        case _:
            before = label(round.tree.texts[parent_of(round, node)], marks)
            return f"not reached: {before} before it was not accepted"


def source_of(round: RoundDone, node: int) -> Source | None:
    """Where an accepted node was copied from, if the rule took it as a copy."""
    path = round.verdict.path
    at = path.index(node) if node in path else len(round.pieces)
    return round.pieces[at].source if at < len(round.pieces) else None


def _place(source: Source, marks: Marks) -> str:
    """A place in the text, in words: the message, and what stands before it there."""
    after = f", after {label(source.before, marks, 40)}" if source.before else ", its beginning"
    part = label(source.file, marks, 40) if source.file else _PARTS[source.part].format(source.number)
    return part + after


def _rejection(round: RoundDone, node: int, marks: Marks, temperature: float | None) -> str:
    """What the target wrote in place of this node, how that came about, and how likely each of the two was."""
    if (there := _target_token_there(round, node)) is None:
        return "rejected: the target went elsewhere"
    text, logprob = there
    own = label(round.tree.texts[node], marks), round.tree.target_logprob[node]
    return drawn_sentence(temperature, (label(text, marks), logprob), own)


def drawn_sentence(
    temperature: float | None, drawn: tuple[str, float | None], other: tuple[str, float | None] | None = None
) -> str:
    """Which token was drawn, how, and how likely it and another one were: labels and logarithmic probabilities.

    Those are the target's own, before penalties: at temperature 0 penalties may have made another one the likeliest.

    Args:
        temperature: None where tokens are not drawn by the target's law alone.
    """
    text, logprob = drawn
    beaten = other is not None and logprob is not None and other[1] is not None and other[1] > logprob
    who = "the target wrote"
    if temperature is not None:
        who = f"temperature {temperature:g} drew" if temperature else "the target's likeliest is"
        if not temperature and beaten:
            who = "after penalties " + who
    said = f"{who} {text}" + (f" ({percent(logprob)})" if logprob is not None else "")
    return said + (f"; {other[0]} had {percent(other[1])}" if other is not None and other[1] is not None else "")


def percent(logprob: float) -> str:
    probability = probability_of(logprob) or 0.0
    return f"{probability * 100:.0f}\u00a0%" if probability >= 0.005 else "<\u00a01\u00a0%"


def _target_token_there(round: RoundDone, node: int) -> tuple[str, float | None] | None:
    """The token that the target wrote in place of this node, and its logarithmic probability."""
    path, parent = round.verdict.path, parent_of(round, node)
    at = path.index(parent) + 1 if parent in path else 0
    if at < len(path):
        return round.tree.texts[path[at]], round.tree.target_logprob[path[at]]
    if round.verdict.bonus is not None:
        return round.verdict.bonus_text, round.verdict.bonus_logprob
    return None


def _probabilities(round: RoundDone, node: int) -> tuple[str, str]:
    """The probabilities by target and drafter; empty where unknown."""
    logprobs = [*round.tree.target_logprob, round.verdict.bonus_logprob]
    logprob, drafted = logprobs[node], drafted_of(round).get(node)
    share = probability_of(logprob) or 0.0
    said = "" if logprob is None else f"{share:.2f}" if share >= 0.005 else "< 0.01"
    return said, "" if drafted is None else f"{drafted:.2f}"


def _origin(round: RoundDone, node: int) -> str:
    """The proposers of the node, and the kinds of its draws."""
    draws = [draw for draw in round.tree.draws if draw.child == node]
    if not draws:
        return ""
    names = proposers_of(round)[node]
    said = f"by {' and '.join(names)}" if names else "by a drafter without a name"
    times = f"{len(draws)} draws: " if len(draws) > 1 else ""
    return f"{said} · {times}{', '.join(dict.fromkeys(_KINDS[draw.kind] for draw in draws))}"


def _token(round: RoundDone, node: int) -> int:
    return int(round.verdict.bonus or 0) if node == bonus_of(round) else round.tree.tokens[node]


Step = Literal["parent", "child", "previous", "next", "root", "bonus"]


def bonus_of(round: RoundDone) -> int | None:
    """The bonus's number: the one after the tree's last node; None where the reply ended without one."""
    return None if round.verdict.bonus is None else len(round.tree.tokens)


def parent_of(round: RoundDone, node: int) -> int:
    """The node before this one; −1 before the root."""
    if node < len(round.tree.parents):
        return round.tree.parents[node]
    return round.verdict.path[-1] if round.verdict.path else 0


def children_of(round: RoundDone, node: int) -> list[int]:
    """What follows this node: the path first, then the others as they were drafted."""
    children = [child for child, parent in enumerate(round.tree.parents) if parent == node and child > node]
    bonus = bonus_of(round)
    if bonus is not None and node < bonus and parent_of(round, bonus) == node:
        children.append(bonus)
    path = {*round.verdict.path, bonus}
    return sorted(children, key=lambda child: child not in path)


def neighbour(round: RoundDone, node: int, step: Step) -> int:
    """The node one step away, or the same one where there is none."""
    match step:
        case "parent":
            return max(0, parent_of(round, node))
        case "child":
            return next(iter(children_of(round, node)), node)
        case "root":
            return 0
        case "bonus":
            bonus = bonus_of(round)
            return bonus if bonus is not None else (round.verdict.path or [0])[-1]
    level = _nodes_at_depth_of(round, node)
    at = level.index(node) + (1 if step == "next" else -1)
    return level[at] if 0 <= at < len(level) else node


def depth_of(round: RoundDone, node: int) -> int:
    depth = 0
    while (node := parent_of(round, node)) >= 0:
        depth += 1
    return depth


def _nodes_at_depth_of(round: RoundDone, node: int) -> list[int]:
    """All nodes of this one's depth, siblings beside each other."""
    level = [0]
    while level and node not in level:
        level = [child for parent in level for child in children_of(round, parent)]
    return level or [node]


def strip_lines(round: RoundDone, parent: int, width: int, marks: Marks) -> list[tuple[ScreenLine, str]]:
    """The strip of layers at the place behind this node, and in words where it was decided; empty where not known."""
    lens = lens_at(round, parent)
    if lens is None:
        return []
    visited = [0, *round.verdict.path]
    written = round.pieces[visited.index(parent)].token
    cells = min(lens.layers, max(1, width - 8))
    bounds = [at * lens.layers // cells for at in range(cells + 1)]  # a cell is full if all of its layers agree
    strip = "".join("█" if all(lens.agrees[begin:end]) else "·" for begin, end in pairwise(bounds))
    last = lens.tops[-1]
    words = f"{label(last.text, marks)} decided at layer\u00a0{last.layer} of\u00a0{lens.layers}"
    if len(lens.tops) > 1:
        words += f", {label(lens.tops[-2].text, marks)} before"
    if last.token != written:
        words += "; likeliest, but another was drawn"
    return [([("layers ", "dim"), (strip, "text")], words)]


def heat_line(rounds: Sequence[RoundDone]) -> str:
    """How late each kept token was decided, low is early: `▂▁█▅ decided at layer 21 of 30 on average, █ is the last`.

    Empty where no token tells.
    """
    heat = heat_of(rounds)
    return "" if heat is None else f"{spark(heat.shares, 1.0)} {heat.words}"
