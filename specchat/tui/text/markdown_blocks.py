"""Splits growing Markdown into finished blocks, which no longer change, and an open rest.

A block parser reads line by line: once a new top-level block has begun, the ones before it are closed. So everything
before the last top-level block of the *complete* lines is finished, and the last one too if a blank line closes its
kind. The parser that later draws the blocks decides this. Two of its features are off: link definitions, which change
earlier blocks, and HTML, which would be dropped instead of shown.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

_CLOSED_BY_BLANK_LINE = frozenset({"paragraph_open", "heading_open", "hr", "table_open"})


_ESCAPED = frozenset("\\`*_#|>~")
"""Characters that models escape. A backslash before another belongs to the text, as in `\\(x\\)` or `\\[`."""


def reply_parser() -> MarkdownIt:
    """The Markdown that replies are written in."""
    parser = MarkdownIt("gfm-like").disable(["reference", "html_block", "html_inline"])
    parser.core.ruler.before("text_join", "backslashes", _keep_backslashes)
    parser.core.ruler.after("inline", "line_breaks", _keep_line_breaks)
    return parser


def _keep_line_breaks(state: StateCore) -> None:
    """End a line where the text does: models break lines in poems and addresses, and wrap none."""
    for token in state.tokens:
        for part in token.children or ():
            if part.type == "softbreak":
                part.type = "hardbreak"


def _keep_backslashes(state: StateCore) -> None:
    """Show the backslash before a character that needs none."""
    for token in state.tokens:
        for part in token.children or ():
            if part.type == "text_special" and part.info == "escape" and part.content not in _ESCAPED:
                part.content = part.markup


def code_blocks(text: str) -> list[str]:
    """The code in a message, block by block."""
    return [token.content for token in reply_parser().parse(text) if token.type in ("fence", "code_block")]


LONG = 4_000
"""Characters from which on an open block is parsed again only when it has grown by an eighth."""


class BlockSplitter:
    """Collects text and hands out what is finished; the rest is `open`."""

    def __init__(self) -> None:
        self.open = ""
        self._seen = 0  # characters of `open` that were looked at
        self._parsed = 0  # … that were parsed the last time
        self._parser = reply_parser().disable(["inline", "linkify", "text_join"])

    def feed(self, text: str) -> str:
        """Take more text; return whole blocks that are finished by it, or nothing."""
        self.open += text
        end = self.open.rfind("\n") + 1
        news = self.open[max(0, self._seen - 2) : end]
        if end <= self._seen or "\n\n" not in news:
            return ""
        if end > LONG and end < self._parsed * 9 // 8:
            return ""
        self._parsed = end
        cut = self._finished(self.open[:end])
        done, self.open = self.open[:cut], self.open[cut:]
        self._seen = end - cut
        self._parsed -= cut
        return done

    def finish(self) -> str:
        """All that is left, because no more text will come."""
        rest, self.open, self._seen, self._parsed = self.open, "", 0, 0
        return rest

    def _finished(self, text: str) -> int:
        """How many characters of these complete lines belong to blocks that are closed."""
        blocks = [token for token in self._parser.parse(text) if token.level == 0 and token.map and token.nesting >= 0]
        if not blocks:
            return 0
        lines = text.splitlines(keepends=True)
        start = blocks[-1].map[0] if blocks[-1].map else 0
        closed = len(lines) if _is_closed(blocks[-1], lines) else start
        return sum(len(line) for line in lines[:closed])


def _is_closed(block: Token, lines: list[str]) -> bool:
    if lines[-1].strip():
        return False
    if block.type == "fence":
        return block.map is not None and block.map[1] < len(lines)
    return block.type in _CLOSED_BY_BLANK_LINE
