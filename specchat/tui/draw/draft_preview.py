"""The preview of a draft behind the text: pending guesses, accepted ones, and rejected ones struck out."""

from __future__ import annotations

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.text import visible
from specchat.tui.draw.token_tree.picture import drafted_of
from specchat.tui.text.cells import ScreenLine


def preview(round: RoundDone, upto: int) -> ScreenLine:
    """The preview while the verdict is shown down to depth `upto`.

    The accepted tokens so far, then the most likely guess: pending, or struck out once it was rejected. The bonus token
    follows after the path.
    """
    path, best = round.verdict.path, best_path(round)
    common = next((at for at, pair in enumerate(zip(path, best, strict=False)) if pair[0] != pair[1]), None)
    common = min(len(path), len(best)) if common is None else common
    line: ScreenLine = [(_shown(round, node), "drafted") for node in path[:upto]]
    if upto <= common:
        return line + [(_shown(round, node), "pending") for node in best[upto:]]
    if upto == common + 1 and common < len(best):
        line.insert(common, (_shown(round, best[common]), "rejected"))
    if upto > len(path) and round.pieces and round.pieces[-1].origin == "target":
        line.append((_one_line(round.pieces[-1].text), "target"))
    return line


def rejected_guess(round: RoundDone) -> ScreenLine:
    """The most likely guess in place of the bonus token, struck out; empty where there was none."""
    path = round.verdict.path
    guess = "".join(_shown(round, node) for node in best_path(round, path[-1] if path else 0)).strip()
    return [(" ✕", "crossed"), (guess, "rejected")] if guess and round.verdict.bonus is not None else []


def best_path(round: RoundDone, node: int = 0) -> list[int]:
    """The path down from this node along the children that the drafter held most likely."""
    likely = drafted_of(round)
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(round.tree.parents):
        if 0 <= parent < child:
            children.setdefault(parent, []).append(child)
    path: list[int] = []
    while node in children:
        node = max(children[node], key=lambda child: likely.get(child, 0.0))  # the first of equals
        path.append(node)
    return path


def _shown(round: RoundDone, node: int) -> str:
    return _one_line(round.tree.texts[node])


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "⏎").replace("\t", " ")
