"""Markdown that no longer changes, with one layout where Textual's own widget takes two."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from specchat.tui.text.markdown_blocks import reply_parser
from specchat.tui.widgets.growing_rows import GrowingRows, arrange_vertically
from specchat.tui.widgets.text_roles import styles_of_part


class ListItem(Horizontal, GrowingRows):
    """A bullet and the content of its list item."""

    DEFAULT_CSS = """
    Item > MarkdownBullet { height: 1; }
    """


def compose_block(block: MarkdownBlock) -> ComposeResult:
    """The parts of a block; a list item with one part holds it directly, so that it is laid out once."""
    kind: type[MarkdownBlock] = type(block).__base__  # type: ignore[assignment]
    for part in kind.compose(block):
        if isinstance(part, Horizontal):
            bullet, beside = part._pending_children
            alone = len(beside._pending_children) == 1
            part = ListItem(bullet, *(beside._pending_children if alone else [beside]))
        yield part


def without_second_layout(block: type[MarkdownBlock]) -> type[MarkdownBlock]:
    """The same block class, without the second layout that Textual requests after every change of size.

    That layout is only needed by scrollbars, which request it themselves; it costs a whole frame. The styles of
    emphasis and code are looked up only where they are used.
    """
    changed: dict[str, Any] = {
        "__module__": __name__,
        "virtual_size": Reactive(Size(0, 0)),
        "arrange": arrange_vertically,
        "compose": compose_block,
        "get_component_styles": styles_of_part,
        "_get_component_classes": classmethod(lambda _: frozenset()),
    }
    return type(block.__name__, (block,), changed, inherit_css=True)


class FinishedMarkdown(Markdown, GrowingRows):
    """The finished part of a reply, as Markdown."""

    BLOCKS = {  # noqa: RUF012
        name: without_second_layout(block) for name, block in Markdown.BLOCKS.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text, parser_factory=reply_parser, open_links=False)

    async def extend(self, text: str) -> None:
        """Append blocks at the end."""
        self._markdown += text
        await self.mount_all(self._parse_markdown(reply_parser().parse(text)))
