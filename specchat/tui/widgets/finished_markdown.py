"""Finished Markdown, laid out once where Textual's own would be laid out twice."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from specchat.tui.text.markdown_blocks import reply_parser
from specchat.tui.widgets.growing_rows import Growing, arrange_downwards
from specchat.tui.widgets.text_roles import styles_of_part


class Item(Horizontal, Growing):
    """A bullet, and beside it what belongs to it."""

    DEFAULT_CSS = """
    Item > MarkdownBullet { height: 1; }
    """


def composed(block: MarkdownBlock) -> ComposeResult:
    """What is inside a block; the rows of a list each laid out once, and nothing around what is alone in one."""
    kind: type[MarkdownBlock] = type(block).__base__  # type: ignore[assignment]
    for part in kind.compose(block):
        if isinstance(part, Horizontal):
            bullet, beside = part._pending_children
            alone = len(beside._pending_children) == 1
            part = Item(bullet, *(beside._pending_children if alone else [beside]))
        yield part


def still(block: type[MarkdownBlock]) -> type[MarkdownBlock]:
    """The same kind of block, which does not ask for another layout whenever a layout gave it a size.

    Asking serves scrollbars, and those ask for themselves. Two layouts cost two whole frames. What emphasis and code
    look like is found out where there is any.
    """
    changed: dict[str, Any] = {
        "__module__": __name__,
        "virtual_size": Reactive(Size(0, 0)),
        "arrange": arrange_downwards,
        "compose": composed,
        "get_component_styles": styles_of_part,
        "_get_component_classes": classmethod(lambda _: frozenset()),
    }
    return type(block.__name__, (block,), changed, inherit_css=True)


class Finished(Markdown, Growing):
    """Markdown of a reply that will not change any more."""

    BLOCKS = {  # noqa: RUF012
        name: still(block) for name, block in Markdown.BLOCKS.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text, parser_factory=reply_parser, open_links=False)

    async def extend(self, text: str) -> None:
        """Put more blocks below."""
        self._markdown += text
        await self.mount_all(self._parse_markdown(reply_parser().parse(text)))
