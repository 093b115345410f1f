"""Splits growing Markdown into finished blocks, which no longer change, and an open rest.

A block parser reads line by line: once a new top-level block has begun, the ones before it are closed. So everything
before the last top-level block of the *complete* lines is finished, and the last one too if a blank line closes its
kind. The parser that later draws the blocks decides this. Two of its features are off: link definitions, which change
earlier blocks, and HTML, which would be dropped instead of shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

_CLOSED_BY_BLANK_LINE = frozenset({"paragraph_open", "heading_open", "hr", "table_open"})


_ESCAPED = frozenset("\\`*_#|>~")
"""Characters that models escape. A backslash before another belongs to the text, as in `\\(x\\)` or `\\[`."""


def reply_parser() -> MarkdownIt:
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
    return [token.content for token in _block_parser().parse(text) if token.type in ("fence", "code_block")]


def _block_parser() -> MarkdownIt:
    """The parser of replies without what is within paragraphs, which takes most of the time."""
    return reply_parser().disable(["inline", "linkify", "text_join"])


LONG = 4_000
"""Characters from which on an open block is parsed again only when it has grown by an eighth."""

LONGEST_OPEN = 32_000
"""Characters from which on an open block is not parsed any more before the text ends."""


class BlockSplitter:
    """Collects text and hands out what is finished; the rest is `open`."""

    def __init__(self) -> None:
        self.open = ""
        self._seen = 0  # characters of `open` that were looked at
        self._parsed = 0  # … that were parsed the last time
        self._parser = _block_parser()

    def feed(self, text: str) -> str:
        """Take more text; return whole blocks that are finished by it, or nothing."""
        self.open += text
        end = self.open.rfind("\n") + 1
        news = self.open[max(0, self._seen - 2) : end]
        if end <= self._seen or "\n\n" not in news:
            return ""
        if end > LONGEST_OPEN or (end > LONG and end < self._parsed * 9 // 8):
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
        start, end = blocks[-1].map or (0, len(lines))
        ends = end < len(lines) if blocks[-1].type == "fence" else blocks[-1].type in _CLOSED_BY_BLANK_LINE
        closed = len(lines) if ends and not lines[-1].strip() else start
        return sum(len(line) for line in lines[:closed])


STEP_WIDGETS = 240
"""Widgets that are mounted and laid out at once: about a tenth of a second."""

STEP_CHARACTERS = 8_000
"""Characters of Markdown after which the next step begins."""

MOST_WIDGETS = 10 * STEP_WIDGETS
"""Widgets of one message: mounting, resizing and quitting take time in proportion to them."""

MOST_PARSED = 200_000
"""Characters of one message that are drawn as Markdown."""

LONGEST_PARAGRAPH = 5_000
"""Characters of a paragraph: brackets or stars without partners take quadratic time."""

LONGEST_CODE = 20_000
"""Characters of a code block …"""

MOST_CODE_LINES = 500
"""… and its lines that are coloured."""

MOST_TABS = 200
"""Tabs in a line of code: Textual expands them in quadratic time."""

_WIDGETS = {"list_item_open": 2, "inline": 0, "thead_open": 0, "tbody_open": 0, "tr_open": 0}
"""Widgets of a token; of others, one."""


@dataclass(frozen=True)
class DrawingStep:
    """A part of a finished text that is drawn at once."""

    text: str
    widgets: int  # that its Markdown takes; 0: it is drawn as plain text, as Markdown it would take too long


def drawing_steps(text: str, most_widgets: int = MOST_WIDGETS) -> list[DrawingStep]:
    """Divide finished Markdown between its blocks. The steps together are the text.

    A block that is too large is a plain step of its own, and so is everything from where `most_widgets` are taken.
    """
    parsed = text if len(text) <= MOST_PARSED else text[: text.rfind("\n", 0, MOST_PARSED) + 1]
    steps: list[DrawingStep] = []
    taken = at = 0
    for block, widgets in _blocks(parsed):
        taken += widgets
        if taken > most_widgets:
            break
        last = steps[-1] if steps else None
        if last and widgets and 0 < last.widgets <= STEP_WIDGETS - widgets and len(last.text) < STEP_CHARACTERS:
            steps[-1] = DrawingStep(last.text + block, last.widgets + widgets)
        else:
            steps.append(DrawingStep(block, widgets))
        at += len(block)
    rest = text[at:]
    if rest and steps and not steps[-1].widgets:
        rest = steps.pop().text + rest
    return [*steps, DrawingStep(rest, 0)] if rest.strip() else steps


def _blocks(text: str) -> Iterator[tuple[str, int]]:
    """The top-level blocks of a text with the blank lines around them, and how many widgets each takes; 0: too many."""
    lines = text.split("\n")
    blocks: list[tuple[int, list[Token]]] = []
    for token in _block_parser().parse(text):
        if token.level == 0 and token.map and token.nesting >= 0:
            blocks.append((token.map[0] if blocks else 0, []))
        if blocks:
            blocks[-1][1].append(token)
    ends = [start for start, _ in blocks[1:]] + [len(lines)]
    for (start, tokens), end in zip(blocks, ends, strict=False):
        widgets = sum(_WIDGETS.get(token.type, 1) for token in tokens if token.nesting >= 0)
        fits = widgets <= STEP_WIDGETS and all(map(_is_quick, tokens))
        yield "\n".join(lines[start:end]) + ("\n" if end < len(lines) else ""), widgets if fits else 0


def _is_quick(token: Token) -> bool:
    """Whether a paragraph or a code block is drawn in time."""
    if token.type == "inline":
        return len(token.content) <= LONGEST_PARAGRAPH
    if token.type not in ("fence", "code_block"):
        return True
    code = token.content
    few = len(code) <= LONGEST_CODE and code.count("\n") <= MOST_CODE_LINES
    return few and all(line.count("\t") <= MOST_TABS for line in code.split("\n"))
