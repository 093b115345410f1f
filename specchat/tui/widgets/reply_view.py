"""One reply: finished blocks as Markdown, the open one as tinted tokens, one line of figures under it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.reactive import reactive
from textual.widgets import Markdown

from specchat.engine.text import visible
from specchat.tui.blocks import Splitter, reply_parser
from specchat.tui.chat import Reply
from specchat.tui.widgets.tinted import Tinted


class ReplyView(Vertical):
    """Shows a reply while it grows and after. Finished Markdown is drawn once and never again."""

    DEFAULT_CSS = """
    ReplyView { height: auto; margin: 0 0 1 0; padding: 0 1 0 2; }
    ReplyView > Markdown { padding: 0; background: transparent; }
    ReplyView > .tokens { display: none; }
    ReplyView.-tokens > .tokens { display: block; }
    ReplyView.-tokens > Markdown, ReplyView.-tokens > .tail { display: none; }
    """

    token_view: reactive[bool] = reactive(False)
    """Show tokens coloured by who wrote them instead of Markdown."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply
        self._splitter = Splitter()
        self._ended = False
        self._shown = 0  # pieces of the reply that are on the screen
        self._tail = Tinted(classes="tail")
        self._tokens = Tinted(classes="tokens")
        self._figures = Tinted(classes="figures")

    def compose(self) -> ComposeResult:
        """Blocks are mounted between nothing and the tail, in order."""
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
    def growing(self) -> bool:
        """Something of the reply is not on the screen yet, or its end is not."""
        return not self._ended

    async def grow(self) -> None:
        """Show pieces that are new, and the end if there is one."""
        fresh = self.reply.pieces[self._shown :]
        self._shown += len(fresh)
        if fresh:
            if self.token_view:
                self._tokens.add(fresh)
            self._tail.add(fresh)
            await self._commit("".join(self._splitter.feed(text) for text, _ in fresh))
        elif not self._shown and self.reply.stop is None:
            self._waiting()
        if self.reply.stop is not None:
            await self._finish()
        elif fresh and self._figures.display:
            self._figures.display = False

    async def _commit(self, text: str) -> None:
        """Move finished blocks from the tail to Markdown; the tail shrinks in the same frame."""
        if not text:
            return
        if text.strip():
            await self.mount(Markdown(text, parser_factory=reply_parser, open_links=False), before=self._tail)
        self._tail.drop_lines(text.count("\n"))

    async def _finish(self) -> None:
        if self._ended:
            return
        self._ended = True
        rest = self._splitter.finish()
        if rest.strip():
            await self.mount(Markdown(rest, parser_factory=reply_parser, open_links=False), before=self._tail)
        self._tail.display = False
        line = self.reply.line()
        self._figures.display = bool(line)
        self._figures.set([(_in_parts(visible(line)), "dim")])

    def _waiting(self) -> None:
        done, total = self.reply.prefilled
        self._figures.display = True
        text = f"reading the prompt · {done:,} of {total:,} tokens" if total else "…"
        self._figures.set([(text, "dim")])


def _in_parts(line: str) -> str:
    """Breaks only between the parts: a number stays with its unit."""
    return line.replace(" ", "\u00a0").replace("\u00a0·\u00a0", " ·\u00a0")
