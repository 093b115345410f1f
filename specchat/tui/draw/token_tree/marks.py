"""The characters that trees are drawn with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from specchat.engine.protocol.text import visible
from specchat.tui.text.cells import cut

TOKEN_CELLS = 10


@dataclass(frozen=True)
class Marks:
    """One set of characters to draw trees with; every mark is one cell wide."""

    accepted: str
    bonus: str
    rejected: str
    unreached: str
    pruned: str
    cut: str
    pending: str
    agreed: str  # behind a token that several drafters proposed: two of them, three, more
    river: str  # the path's own line
    river_fork: str  # … where branches hang from it
    line: str
    fork: str
    branch: str
    corner: str
    pipe: str
    more: str
    space: str
    newline: str
    tab: str
    full: str
    shades: str  # from improbable to certain

    def glyph(self, state: str) -> str:
        """The mark of a node in this state; the root has none."""
        return "" if state == "root" else str(getattr(self, state))

    def agreement(self, proposers: int) -> str:
        """The mark behind a token that this many drafters proposed."""
        return "" if proposers < 2 else self.agreed[min(proposers, len(self.agreed) + 1) - 2]

    def shade(self, probability: float | None) -> str:
        """A probability as the darkness of one cell; blank where it is not known."""
        return " " if probability is None else self.shades[min(len(self.shades) - 1, int(probability * 5))]


UNICODE = Marks(
    accepted="●", bonus="★", rejected="✕", unreached="○", pruned="⊘", cut="◐", pending="◌", agreed="²³⁺", river="━",
    river_fork="┯", line="─", fork="┬", branch="├", corner="╰", pipe="│", more="…", space="·", newline="⏎", tab="⇥",
    full="━", shades=" ░▒▓█",
)  # fmt: skip
ASCII = Marks(
    accepted="*", bonus="+", rejected="x", unreached=".", pruned="%", cut="!", pending="?", agreed="&&&", river="=",
    river_fork="=", line="-", fork="-", branch="|", corner="`", pipe="|", more="~", space="_", newline="$", tab=">",
    full="#", shades=" .:=#",
)  # fmt: skip


@lru_cache(maxsize=4096)
def label(text: str, marks: Marks, cells: int = TOKEN_CELLS) -> str:
    """A token's text with its white space visible, cut to a few cells."""
    shown = text.replace(" ", marks.space).replace("\n", marks.newline).replace("\t", marks.tab)
    shown = cut(visible(shown), cells) or "∅"
    return shown if marks is UNICODE else shown.encode("ascii", "replace").decode().replace("?", marks.more)
