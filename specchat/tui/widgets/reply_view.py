"""One reply: finished blocks as Markdown, the open one as tinted tokens, one line of figures under it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.reactive import reactive

from specchat.engine.protocol.text import visible
from specchat.tui.state.thoughts import Thoughts, opened_before
from specchat.tui.state.turn import Reply, Turn
from specchat.tui.text.cells import Row
from specchat.tui.text.markdown_blocks import Splitter
from specchat.tui.widgets.finished_markdown import Finished
from specchat.tui.widgets.growing_rows import Growing
from specchat.tui.widgets.thought import ThoughtView
from specchat.tui.widgets.tinted_text import TintedText

QUICK = 40.0
"""Tokens per second from which on text rises by several rows at once: nobody can follow single ones."""

QUICK_STEP = 3

ROOMY = 20
"""Rows of a window in which a blank row or two at the end do not matter."""

QUICK_BLOCK = 400
"""At that speed, characters that finished blocks have together before they become Markdown, which costs a frame …"""

QUICK_WAIT_S = 1.0
"""… but none of them waits for longer than that."""


TOGETHER = 16
"""Commits of a long reply that stand in one document; those above it need not be looked at again."""


class ReplyView(Growing, Vertical):
    """Shows a reply while it grows and after. Finished Markdown is drawn once and never again."""

    DEFAULT_CSS = """
    ReplyView { height: auto; margin: 0 0 1 0; padding: 0 1 0 2; }
    ReplyView Markdown { padding: 0; background: transparent; }
    ReplyView > .tokens { display: none; }
    ReplyView.-tokens > .tokens { display: block; }
    ReplyView.-tokens > Markdown, ReplyView.-tokens > .tail { display: none; }
    """

    token_view: reactive[bool] = reactive(False)
    """Show tokens coloured by who wrote them instead of Markdown."""

    def __init__(self, reply: Reply, turn: Turn | None = None) -> None:
        super().__init__()
        self.reply = reply
        self.turn = turn or Turn("assistant", reply=reply)
        self._splitter = Splitter()
        self._commits = 0  # of finished blocks
        self._last: Finished | None = None  # the document they are put into
        self._held = ""  # finished blocks that are still in the tail
        self._held_at_s = 0.0
        self._ended = False
        self._shown = 0  # pieces of the reply that are on the screen
        self._shown_speech = 0  # … that are no thoughts
        self._thoughts = Thoughts()
        self._thought = ThoughtView()
        self._tail = TintedText(classes="tail")
        self._tokens = TintedText(classes="tokens")
        self._figures = TintedText(classes="figures")

    def compose(self) -> ComposeResult:
        """Blocks are mounted between nothing and the tail, in order."""
        yield self._thought
        yield self._tail
        yield self._tokens
        yield self._figures

    async def on_mount(self) -> None:
        """Show what is there already."""
        await self.grow()

    def watch_token_view(self, shown: bool) -> None:
        """Flip between Markdown and tokens."""
        if shown:
            self._tokens.set(self.reply.pieces[: self._shown])
        self.set_class(shown, "-tokens")

    @property
    def unfolded(self) -> bool:
        """Whether what was thought before the answer is shown."""
        return self._thought.unfolded

    @unfolded.setter
    def unfolded(self, unfolded: bool) -> None:
        self._thought.unfolded = unfolded

    @property
    def growing(self) -> bool:
        """Something of the reply is not on the screen yet, or its end is not."""
        return not self._ended

    async def grow(self) -> None:
        """Show pieces that are new, and the end if there is one."""
        if not self._thoughts.opened and opened_before(self.reply.text):
            await self._begin_again()
        fresh = self.reply.pieces[self._shown :]
        self._shown += len(fresh)
        if fresh:
            if self.token_view:
                self._tokens.add(fresh)
            self._tail.step = QUICK_STEP if self._quick and self.app.size.height >= ROOMY else 1
            await self._say(*self._thoughts.feed(fresh))
        elif not self._shown and self.reply.stop is None:
            self._waiting()
        if self.reply.stop is not None:
            await self._finish()
        elif fresh and self._figures.display:
            self._figures.display = False

    @property
    def _quick(self) -> bool:
        return (self.reply.figures.recent_tokens_per_s or 0.0) > QUICK

    def set_preview(self, runs: Row, *, within: bool = False) -> None:
        """Let these runs follow the text as a ghost: seen, but no part of it."""
        thinking = self._thoughts.thinking
        self._thought.set_preview(runs if thinking else [], within=within)
        self._tail.set_preview([] if thinking else runs, within=within)
        self._tokens.set_preview(runs if self.token_view else [], within=within)

    async def _begin_again(self) -> None:
        """What looked like an answer was a thought, which began before the reply did."""
        await self.query(Finished).remove()
        self._splitter, self._thoughts = Splitter(), Thoughts(opened=True)
        self._held, self._commits, self._last = "", 0, None
        self._shown = self._shown_speech = 0
        self._tail.set(())
        self._tokens.set(())

    async def _say(self, thoughts: list[tuple[str, str]], speech: list[tuple[str, str]]) -> None:
        """Show what was thought and what was said."""
        if thoughts:
            self._thought.add(thoughts, self._thoughts.tokens)
        if speech and self._shown_speech == 0:
            self._thought.close(self.reply.thought_s, self._thoughts.tokens)
        self._shown_speech += len(speech)
        if speech:
            self._tail.add(speech)
            await self._commit("".join(self._splitter.feed(text) for text, _ in speech))

    async def _commit(self, text: str) -> None:
        """Move finished blocks from the tail to Markdown; the tail shrinks in the same frame."""
        at_s = self.reply.figures.at_s
        if not self._held:
            self._held_at_s = at_s
        self._held += text
        waits = len(self._held) < QUICK_BLOCK and at_s - self._held_at_s < QUICK_WAIT_S
        if not self._held or (self._quick and waits):
            return
        text, self._held = self._held, ""
        if text.strip():
            await self._add_block(text)
        self._tail.drop_lines(text.count("\n"))

    async def _add_block(self, text: str) -> None:
        """Put finished blocks below those that are there."""
        if self._last is None or self._commits % TOGETHER == 0:
            self._last = Finished(text)
            await self.mount(self._last, before=self._tail)
        else:
            await self._last.extend(text)
        self._commits += 1

    async def _finish(self) -> None:
        if self._ended:
            return
        self._ended = True
        self.set_preview([])
        await self._say(*self._thoughts.finish())
        self._thought.close(self.reply.thought_s, self._thoughts.tokens)
        rest, self._held = self._held + self._splitter.finish(), ""
        if rest.strip():
            await self._add_block(rest)
        self._tail.display = False
        line = " · ".join(part for part in (place_of(self.turn), self.reply.line()) if part)
        self._figures.display = bool(line)
        self._figures.set([(_in_parts(visible(line)), "dim")])

    def _waiting(self) -> None:
        done, total = self.reply.prefilled
        self._figures.display = True
        text = f"reading the prompt · {done:,} of {total:,} tokens" if total else "…"
        self._figures.set([(text, "dim")])


def place_of(turn: Turn) -> str:
    """`‹ 2/3 ›`: which of several messages in the same place this is; nothing where it is the only one."""
    at, count = turn.place
    return f"‹ {at}/{count} ›" if count > 1 else ""


def _in_parts(line: str) -> str:
    """Breaks only between the parts: a number stays with its unit."""
    return line.replace(" ", "\u00a0").replace("\u00a0·\u00a0", " ·\u00a0")
