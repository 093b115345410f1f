"""The finished part of a reply, as Markdown that no longer changes; diffs have colours of their own."""

from __future__ import annotations

from textual.content import Content, Span
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from specchat.tui.text.markdown_blocks import reply_parser
from specchat.tui.textual_patches.markdown import AlignedTable, append_blocks, without_second_layout
from specchat.tui.textual_patches.widget_parts import GrowingLines

LONGEST_GUESSED = 4_000
"""Characters of code whose language is guessed from it, by all that Pygments knows."""

_DIFF = ("diff", "patch", "udiff")
_STYLES = {"+": "$text-success", "-": "$text-error", "@": "$text-accent"}


class CodeBlock(MarkdownFence):
    """Textual's fence, which knows no colours for diffs."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """The code in colours; + and - begin added and removed lines, so colour is not all that tells them apart."""
        if language.strip().lower() in _DIFF:
            return diff(code)
        if not language and len(code) > LONGEST_GUESSED:
            language = "text"
        return super().highlight(code, language, ansi, dark)


def diff(code: str) -> Content:
    """A diff with a style per line; the lines that name files are bold."""
    spans, at = [], 0
    for line in code.splitlines(keepends=True):
        end = at + len(line.rstrip("\n"))
        style = "bold" if line.startswith(("+++", "---")) else _STYLES.get(line[:1])
        if style is not None:
            spans.append(Span(at, end, style))
        at += len(line)
    return Content(code.rstrip("\n"), spans=[span for span in spans if span.start < len(code.rstrip("\n"))])


_OWN_BLOCKS: dict[str, type[MarkdownBlock]] = {
    "fence": CodeBlock, "code_block": CodeBlock, "table_open": AlignedTable,
}  # fmt: skip


class FinishedMarkdown(Markdown, GrowingLines):
    """A Markdown widget to which finished blocks can be appended."""

    BLOCKS = {  # noqa: RUF012
        name: without_second_layout(block) for name, block in (Markdown.BLOCKS | _OWN_BLOCKS).items()
    }

    def __init__(self) -> None:
        super().__init__(parser_factory=reply_parser, open_links=False)

    async def extend(self, text: str) -> None:
        await append_blocks(self, text, reply_parser)
