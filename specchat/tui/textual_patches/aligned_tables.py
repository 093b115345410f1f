"""Markdown tables whose columns are aligned as their text says; Textual's own are all aligned left."""

from __future__ import annotations

from typing import Literal, cast

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets._markdown import MarkdownBlock, MarkdownTable, MarkdownTableContent

from specchat.tui.textual_patches.version import tested

Side = Literal["left", "center", "right"]


class AlignedTableContent(MarkdownTableContent):
    """The cells, each aligned as its column."""

    def __init__(self, headers: list[Content], rows: list[list[Content]], sides: list[Side]) -> None:
        super().__init__(headers, rows)
        self._sides = sides

    def compose(self) -> ComposeResult:
        """The cells row by row, the headers first."""
        for at, cell in enumerate(super().compose()):
            cell.styles.text_align = self._sides[at % len(self._sides)]
            yield cell


class AlignedTable(MarkdownTable):
    """A table that reads the alignment of its columns, `|:--|--:|`."""

    def compose(self) -> ComposeResult:
        """The cells in one grid."""
        for content in super().compose():
            sides = _sides(self) if tested() else []
            if isinstance(content, MarkdownTableContent) and sides:
                yield AlignedTableContent(content.headers, content.rows, sides)
            else:
                yield content


def _sides(table: MarkdownTable) -> list[Side]:
    """The alignment of every column, from the tokens of the headers."""
    sides: list[Side] = []
    waiting: list[MarkdownBlock] = [table]
    while waiting:
        block = waiting.pop(0)
        if block._token.type == "th_open":
            style = str(block._token.attrs.get("style", ""))
            sides.append(cast(Side, style.removeprefix("text-align:") or "left"))
        waiting += block._blocks
    return sides
