"""Markdown blocks with one layout where Textual's take two, and tables whose columns are aligned as the text says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal, cast

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widgets import Markdown, Static
from textual.widgets._markdown import MarkdownBlock, MarkdownTable, MarkdownTableContent

from specchat.tui.textual_patches import tested
from specchat.tui.textual_patches.widget_parts import GrowingLines, arrange_vertically, styles_of_part

Side = Literal["left", "center", "right"]


class AlignedTableContent(MarkdownTableContent):
    """The cells, each aligned as its column."""

    def __init__(self, headers: list[Content], rows: list[list[Content]], sides: list[Side]) -> None:
        super().__init__(headers, rows)
        self._sides = sides

    def compose(self) -> ComposeResult:
        for at, cell in enumerate(super().compose()):
            cell.styles.text_align = self._sides[at % len(self._sides)]
            yield cell


class AlignedTable(MarkdownTable):
    """A table that reads the alignment of its columns, `|:--|--:|`."""

    def compose(self) -> ComposeResult:
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


LONG = 2_000
"""Characters of Markdown that are parsed while the app goes on."""


class ListItem(Horizontal, GrowingLines):
    DEFAULT_CSS = """
    ListItem > MarkdownBullet { height: 1; }
    """


def compose_block(block: MarkdownBlock) -> ComposeResult:
    """The parts of a block; a list item with one part holds it directly, so that it is laid out once.

    Of a block that Textual cannot compose the source is shown.
    """
    kind: type[MarkdownBlock] = type(block).__base__  # type: ignore[assignment]
    try:
        parts = list(kind.compose(block))
    except Exception:
        logging.getLogger(__name__).exception("a block of Markdown cannot be drawn and is shown as plain text")
        parts = [Static(Content(block.source or ""))]
    for part in parts:
        if isinstance(part, Horizontal) and tested():
            bullet, beside = part._pending_children
            alone = len(beside._pending_children) == 1
            part = ListItem(bullet, *(beside._pending_children if alone else [beside]))
        yield part


def without_second_layout(block: type[MarkdownBlock]) -> type[MarkdownBlock]:
    """The same block class, without the second layout that Textual requests after every change of size.

    That layout is only needed by scrollbars, which request it themselves; it costs a whole frame. The styles of
    emphasis and code are looked up only where they are used.
    """
    if not tested():
        return block
    changed: dict[str, Any] = {
        "__module__": __name__,
        "virtual_size": Reactive(Size(0, 0)),
        "arrange": arrange_vertically,
        "compose": compose_block,
        "get_component_styles": styles_of_part,
        "_get_component_classes": classmethod(lambda _: frozenset()),
    }
    return type(block.__name__, (block,), changed, inherit_css=True)


async def append_blocks(document: Markdown, text: str, parser: Callable[[], MarkdownIt]) -> None:
    """Append finished blocks; Textual's own `append` would parse and draw the last block again."""
    if tested():
        tokens = await asyncio.to_thread(parser().parse, text) if len(text) > LONG else parser().parse(text)
        blocks = list(document._parse_markdown(tokens))
        document._markdown = document.source + text
        await document.mount_all(blocks)
    else:
        await document.append(text)
