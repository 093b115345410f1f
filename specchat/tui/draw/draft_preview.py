"""The ghost of a draft: what was guessed trails the cursor, turns into text where it stands, or falls and vanishes."""

from __future__ import annotations

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.text import visible
from specchat.tui.draw.token_tree.picture import drafted_of
from specchat.tui.text.cells import Row


def preview(round: RoundDone, upto: int) -> Row:
    """The end of the text while the verdict is known down to depth `upto`.

    What stands so far, then the best guess: pending until its turn comes, struck out once it fell. After the path
    follows the bonus.
    """
    path, best = round.verdict.path, best_path(round)
    common = next((at for at, pair in enumerate(zip(path, best, strict=False)) if pair[0] != pair[1]), None)
    common = min(len(path), len(best)) if common is None else common
    row: Row = [(_shown(round, node), "drafted") for node in path[:upto]]
    if upto <= common:
        return row + [(_shown(round, node), "pending") for node in best[upto:]]
    if upto == common + 1 and common < len(best):
        row.insert(common, (_shown(round, best[common]), "rejected"))
    if upto > len(path) and round.pieces and round.pieces[-1].origin == "target":
        row.append((_one_line(round.pieces[-1].text), "target"))
    return row


def rejected_guess(round: RoundDone) -> Row:
    """What was guessed where the target went on by itself, struck out: nothing where no guess reached so far."""
    path = round.verdict.path
    guess = "".join(_shown(round, node) for node in best_path(round, path[-1] if path else 0)).strip()
    return [(" ✕", "crossed"), (guess, "rejected")] if guess and round.verdict.bonus is not None else []


def best_path(round: RoundDone, node: int = 0) -> list[int]:
    """From a child of this node down, always the child that the drafter held likeliest."""
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
