"""One reply: thoughts in brief, finished blocks as Markdown, the open one as tinted tokens, one line of figures."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content, Span
from textual.events import Click
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from specchat.engine.protocol.text import visible
from specchat.tui.state.thoughts import Thoughts, closes_unopened_thought
from specchat.tui.state.turn import Reply, Turn
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, first_lines, first_runs
from specchat.tui.text.markdown_blocks import (
    LONG,
    MOST_WIDGETS,
    STEP_WIDGETS,
    BlockSplitter,
    DrawingStep,
    drawing_steps,
    reply_parser,
)
from specchat.tui.textual_patches.markdown import AlignedTable, append_blocks, without_second_layout
from specchat.tui.textual_patches.widget_parts import GrowingLines
from specchat.tui.tree.alternatives import Emitted, emitted_by, readable_pieces
from specchat.tui.tree.node_details import heat_line
from specchat.tui.widgets.tinted_text import Position, TintedText

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
    BLOCKS = {  # noqa: RUF012
        name: without_second_layout(block) for name, block in (Markdown.BLOCKS | _OWN_BLOCKS).items()
    }

    def __init__(self) -> None:
        super().__init__(parser_factory=reply_parser, open_links=False)

    async def extend(self, text: str) -> None:
        await append_blocks(self, text, reply_parser)


class ThoughtView(Vertical):
    """Unfolded while the model thinks, folded when it has finished; the user can change that."""

    DEFAULT_CSS = """
    ThoughtView { height: auto; display: none; margin: 0 0 1 0; }
    ThoughtView > .thoughts { padding: 0 0 0 2; display: none; }
    ThoughtView.-unfolded > .thoughts { display: block; }
    ReplyView.-tokens > ThoughtView { display: none; }
    """

    unfolded: reactive[bool] = reactive(False)
    """Whether the thoughts are shown."""

    def __init__(self) -> None:
        super().__init__()
        self._line = TintedText()
        self.thoughts = TintedText(classes="thoughts")
        self._caption = ("", "")

    def compose(self) -> ComposeResult:
        yield from (self._line, self.thoughts)

    def watch_unfolded(self, unfolded: bool) -> None:
        self.set_class(unfolded, "-unfolded")
        self._draw()

    def on_click(self) -> None:
        self.unfolded = not self.unfolded

    def add(self, thoughts: list[tuple[str, str]], tokens: int) -> None:
        """Add text of thoughts; nothing is shown while it is only white space."""
        text = "".join(text for text, _ in thoughts)
        if not self.display and not (text := text.lstrip()):
            return
        if not self.display:
            self.display = self.unfolded = True
        self.thoughts.add(first_runs([(text, "dim")]))
        self._caption = ("thinking", f" · {numbers.tokens(tokens)}")
        self._draw()

    def close(self, seconds: float | None, tokens: int) -> None:
        if not self.display:
            return
        took = f" for {seconds:.1f} s" if seconds is not None else ""
        self._caption = (f"thought{took}", f", {numbers.tokens(tokens)}")
        self.unfolded = False
        self._draw()

    def _draw(self) -> None:
        what, figures = self._caption
        self._line.set([("▾ " if self.unfolded else "▸ ", "dim"), (what, "text"), (figures, "dim")])


FAST_TOKENS_PER_S = 40.0
"""Tokens per second from which on the height grows by several lines at once, to save layouts."""

FAST_STEP_LINES = 3

LARGE_WINDOW_LINES = 20
"""Lines of a window that is large enough for blank lines at the end of a fast reply."""

FAST_BLOCK_CHARACTERS = 400
"""At that speed finished blocks become Markdown, which costs a frame, once they have so many characters together …"""

FAST_WAIT_S = 1.0
"""… or after this time."""


COMMITS_PER_DOCUMENT = 16
"""Commits of a long reply in one Markdown widget; full widgets are not laid out again."""


class ReplyView(GrowingLines, Vertical):
    """Shows a reply while it is written and afterwards. Finished Markdown is drawn once."""

    DEFAULT_CSS = """
    ReplyView { height: auto; max-width: 100; margin: 0 0 1 0; padding: 0 1 0 2; }
    ReplyView Markdown { padding: 0; background: transparent; }
    ReplyView > .plain { margin: 0 0 1 0; }
    ReplyView > .tokens { display: none; }
    ReplyView.-tokens > .tokens { display: block; }
    ReplyView.-tokens > Markdown, ReplyView.-tokens > .plain, ReplyView.-tokens > .tail { display: none; }
    """

    token_view: reactive[bool] = reactive(False)
    """Show tokens coloured by who wrote them instead of Markdown."""

    cursor: reactive[int | None] = reactive(None)
    """Which readable piece of the reply the keys point at."""

    @dataclass
    class TokenChosen(Message):
        """The user points at a token of this reply with the mouse; `again`: at the one that the keys point at."""

        view: ReplyView
        again: bool

    def __init__(self, reply: Reply, turn: Turn | None = None) -> None:
        super().__init__()
        self.reply = reply
        self.turn = turn or Turn("assistant", reply=reply)
        self._splitter = BlockSplitter()
        self._commits = 0  # of finished blocks
        self._widgets = 0  # that they take
        self._last: FinishedMarkdown | None = None  # the widget that gets the next commit
        self._uncommitted = ""  # finished blocks that are still shown in the tail
        self._uncommitted_since_s = 0.0
        self.ended = False  # the end of the reply is on the screen
        self._undrawable = False
        self._shown = 0  # pieces of the reply that are on the screen
        self._shown_speech = 0  # … without thoughts
        self._thoughts = Thoughts()
        self._thought = ThoughtView()
        self._tail = TintedText(classes="tail")
        self._tokens = TintedText(classes="tokens")
        self._figures = TintedText(classes="figures")
        self.emitted: list[Emitted] = []  # the reply's tokens, while the keys point at one
        self._cursor_pieces: list[tuple[int, str]] = []
        self._flipped = False  # the tokens are shown for the keys alone

    def compose(self) -> ComposeResult:
        yield from (self._thought, self._tail, self._tokens, self._figures)

    async def on_mount(self) -> None:
        await self.show_new()

    def watch_token_view(self, shown: bool) -> None:
        if shown:
            self._tokens.set(first_runs(self.reply.pieces[: self._shown]))
        self.set_class(shown, "-tokens")

    def move_cursor(self, by: int, *, lines: bool = False) -> bool:
        """Point at the token so many tokens, or screen lines, on; from none on, at the first or the last one.

        False where the reply has no token.
        """
        if self.cursor is None:
            self.emitted = emitted_by(self.reply)
            self._cursor_pieces = readable_pieces(self.emitted)
            if not self._cursor_pieces:
                return False
            self._flipped = self._flipped or not self.token_view
            self.token_view = True
            self.cursor = 0 if by > 0 else len(self._cursor_pieces) - 1
        elif not lines:
            self.cursor = max(0, min(len(self._cursor_pieces) - 1, self.cursor + by))
        else:
            position = self._positions()[self.cursor]
            at = self._tokens.screen_line_of(position)
            self._point_at(self._tokens.position_at(self._tokens.cell_of(position), at + by))
        return True

    @property
    def fork_place(self) -> int | None:
        """The token that the keys point at, by its place among `emitted`."""
        return None if self.cursor is None else self._cursor_pieces[self.cursor][0]

    @property
    def cursor_line(self) -> Region | None:
        if self.cursor is None:
            return None
        line = self._tokens.screen_line_of(self._positions()[self.cursor])
        return Region(self._tokens.content_region.x, self._tokens.content_region.y + line, 1, 1)

    def leave_cursor(self) -> None:
        """Point at no token any more; what was shown as Markdown before is so again."""
        self.cursor = None
        if self._flipped:
            self._flipped = self.token_view = False

    def watch_cursor(self, cursor: int | None) -> None:
        positions = [] if cursor is None else self._positions()
        self._tokens.set_mark(None if cursor is None else (positions[cursor], positions[cursor + 1]))

    def _positions(self) -> list[Position]:
        return self._tokens.positions(visible(text) for _, text in self._cursor_pieces)

    def _point_at(self, position: Position | None) -> None:
        if position is not None:
            at = bisect_right(self._positions(), position) - 1
            self.cursor = max(0, min(len(self._cursor_pieces) - 1, at))

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self._tokens) if self.token_view else None
        if offset is None or (self.cursor is None and not self.move_cursor(1)):
            return
        before = self.cursor
        self._point_at(self._tokens.position_at(offset.x, offset.y))
        self.post_message(self.TokenChosen(self, again=before == self.cursor))

    @property
    def unfolded(self) -> bool:
        return self._thought.unfolded

    @unfolded.setter
    def unfolded(self, unfolded: bool) -> None:
        self._thought.unfolded = unfolded

    async def show_new(self) -> None:
        """Show the new pieces of the reply, and its end if it has ended; as plain text if they cannot be drawn."""
        if not self._tail.is_attached:  # not composed yet: `on_mount` shows them
            return
        if not self._undrawable:
            try:
                await self._show_new()
            except Exception:
                log_undrawable(self.turn)
                self._undrawable = True
        if self._undrawable and self.is_attached:
            await self.remove_children(".plain, FinishedMarkdown")
            self._thought.display, self._tail.display = False, True
            self._tail.set(first_lines(visible(self.reply.text)))
            self._shown, self.ended = len(self.reply.pieces), self.reply.stop is not None

    async def _show_new(self) -> None:
        if not self._thoughts.opened and closes_unopened_thought(self.reply.text):
            await self.remove_children(".plain, FinishedMarkdown")
            self._splitter, self._thoughts = BlockSplitter(), Thoughts(opened=True)
            self._uncommitted, self._commits, self._widgets, self._last = "", 0, 0, None
            self._shown = self._shown_speech = 0
            self._tail.set(())
            self._tokens.set(())
        fresh = self.reply.pieces[self._shown :]
        self._shown += len(fresh)
        if fresh:
            if self.token_view:
                self._tokens.add(fresh)
            self._tail.step = FAST_STEP_LINES if self._is_fast and self.app.size.height >= LARGE_WINDOW_LINES else 1
            await self._show(*self._thoughts.feed(fresh))
        elif not self._shown and self.reply.stop is None:
            done, total = self.reply.prefilled
            self._figures.display = True
            text = f"reading the prompt · {done:,} of {total:,} tokens" if total else "…"
            self._figures.set([(text, "dim")])
        if self.reply.stop is not None:
            await self._finish()
        elif fresh and self._figures.display:
            self._figures.display = False

    @property
    def _is_fast(self) -> bool:
        return (self.reply.figures.recent_tokens_per_s or 0.0) > FAST_TOKENS_PER_S

    def set_preview(self, runs: ScreenLine, *, within: bool = False) -> None:
        """Show these runs behind the text as a preview of draft tokens; they are not part of the text."""
        thinking = self._thoughts.thinking
        self._thought.thoughts.set_preview(runs if thinking else [], within=within)
        self._tail.set_preview([] if thinking else runs, within=within)
        self._tokens.set_preview(runs if self.token_view else [], within=within)

    async def _show(self, thoughts: list[tuple[str, str]], speech: list[tuple[str, str]]) -> None:
        if thoughts:
            self._thought.add(thoughts, self._thoughts.tokens)
        if speech and self._shown_speech == 0:
            self._thought.close(self.reply.facts.thought_s, self._thoughts.tokens)
        self._shown_speech += len(speech)
        text = "".join(text for text, _ in speech)
        if text and self.reply.stop is None:
            self._tail.add(speech)
            await self._commit(self._splitter.feed(text))
        else:  # no more will come, so that nothing is open
            self._uncommitted += self._splitter.finish() + text

    async def _commit(self, text: str) -> None:
        """Move finished blocks from the tail into a Markdown widget, within one frame."""
        at_s = self.reply.figures.at_s
        if not self._uncommitted:
            self._uncommitted_since_s = at_s
        self._uncommitted += text
        waits = len(self._uncommitted) < FAST_BLOCK_CHARACTERS and at_s - self._uncommitted_since_s < FAST_WAIT_S
        if not self._uncommitted or (self._is_fast and waits):
            return
        text, self._uncommitted = self._uncommitted, ""
        for step in await self._steps(text):
            await self._draw(step)
        self._tail.drop_lines(text.count("\n"))

    async def _steps(self, text: str) -> list[DrawingStep]:
        """The steps in which finished blocks are drawn; they are told apart beside the app if that takes long."""
        left = MOST_WIDGETS - self._widgets
        return drawing_steps(text, left) if len(text) <= LONG else await asyncio.to_thread(drawing_steps, text, left)

    async def _draw_in_turn(self, steps: Sequence[DrawingStep]) -> None:
        """Draw each step once the one before is on the screen."""
        for step in steps:
            drawn = asyncio.Event()
            self.call_after_refresh(drawn.set)
            await drawn.wait()
            await self._draw(step)

    async def _draw(self, step: DrawingStep) -> None:
        """Append finished blocks to the Markdown; nothing where the view or the app is about to go.

        Where they take too long, or Textual cannot draw them, they are shown as plain text.
        """
        if not self._tail.is_attached or (self._last is not None and not self._last.is_attached):
            return
        self._widgets += step.widgets
        if not step.widgets:
            await self._add_plain(step.text)
            return
        try:
            if self._last is None or self._commits % COMMITS_PER_DOCUMENT == 0 or step.widgets * 2 > STEP_WIDGETS:
                self._last = FinishedMarkdown()
                await self.mount(self._last, before=self._tail)
            await self._last.extend(step.text)
        except Exception:
            log_undrawable(self.turn)
            await self._add_plain(step.text)
        self._commits += 1

    async def _add_plain(self, text: str) -> None:
        """Append text as it is; what follows begins another document."""
        self._last = None
        await self.mount(TintedText(first_lines(text.strip("\n")), classes="plain"), before=self._tail)

    async def _finish(self) -> None:
        if self.ended:
            return
        self.ended = True
        self.set_preview([])
        await self._show(*self._thoughts.finish())
        self._thought.close(self.reply.facts.thought_s, self._thoughts.tokens)
        rest, self._uncommitted = self._uncommitted + self._splitter.finish(), ""
        steps = await self._steps(rest)
        for step in steps[:1]:
            await self._draw(step)
        if len(steps) > 1:
            self.run_worker(self._draw_in_turn(steps[1:]), exit_on_error=False)
        self._tail.display = False
        line = " · ".join(part for part in (branch_label(self.turn), self.reply.line()) if part)
        self._figures.display = bool(line)
        line = visible(line).replace(" ", "\u00a0").replace("\u00a0·\u00a0", " ·\u00a0")
        heat = heat_line(self.reply.rounds.list) if self.reply.shows_layers else ""
        self._figures.set([("\n".join(filter(None, (heat, line))), "dim")])


def log_undrawable(turn: Turn) -> None:
    """Write to the log that a message is shown as plain text, and the error that is being handled."""
    logging.getLogger(__name__).exception("the message %s cannot be drawn and is shown as plain text", turn.id)


def branch_label(turn: Turn) -> str:
    """`‹ 2/3 ›`: which of the branches at this place is shown; empty where there is only one."""
    at, count = turn.place
    return f"‹ {at}/{count} ›" if count > 1 else ""
