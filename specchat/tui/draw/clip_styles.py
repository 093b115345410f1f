"""How the roles of a clip's lines look, whatever it is written as."""

from __future__ import annotations

from specchat.tui.draw.theme import DARK

_QUIET, _LINES = DARK.variables["quiet-color"], DARK.variables["line-color"]
COLOURS = {
    "root": _QUIET, "accepted": DARK.primary, "bonus": DARK.accent, "rejected": _QUIET, "crossed": _QUIET,
    "unreached": _QUIET, "pending": _QUIET, "pruned": _QUIET, "cut": DARK.primary, "agreed": DARK.secondary,
    "river": DARK.primary, "line": _LINES, "dim": _QUIET, "drafted": DARK.primary, "target": DARK.accent,
}  # fmt: skip
"""The colour of each role; of the others, the text's own."""

BOLD, ITALIC, STRUCK = ("accepted", "bonus"), ("pending", "unreached"), ("rejected", "pruned", "cut")
