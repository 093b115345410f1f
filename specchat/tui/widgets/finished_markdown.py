"""The finished part of a reply, as Markdown that no longer changes."""

from __future__ import annotations

from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from specchat.tui.text.markdown_blocks import reply_parser
from specchat.tui.textual_patches.aligned_tables import AlignedTable
from specchat.tui.textual_patches.growing_lines import GrowingLines
from specchat.tui.textual_patches.markdown_layout import append_blocks, without_second_layout
from specchat.tui.widgets.code_block import CodeBlock

_OWN_BLOCKS: dict[str, type[MarkdownBlock]] = {
    "fence": CodeBlock, "code_block": CodeBlock, "table_open": AlignedTable,
}  # fmt: skip


class FinishedMarkdown(Markdown, GrowingLines):
    """A Markdown widget to which finished blocks can be appended."""

    BLOCKS = {  # noqa: RUF012
        name: without_second_layout(block) for name, block in (Markdown.BLOCKS | _OWN_BLOCKS).items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text, parser_factory=reply_parser, open_links=False)

    async def extend(self, text: str) -> None:
        """Append finished blocks."""
        await append_blocks(self, text, reply_parser)
