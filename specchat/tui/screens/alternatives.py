"""A page over the chat with what else could stand at one place of a reply; its result is what the user chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.events import Click

from specchat.engine.protocol.commands import Cancel, Generate
from specchat.engine.protocol.events import Event, Failed, Finished, Ready, RoundDone
from specchat.engine.protocol.text import visible
from specchat.tui.screens.page import Page
from specchat.tui.services.context import AppServices
from specchat.tui.state.turn import Turn
from specchat.tui.text.cells import ScreenLine
from specchat.tui.text.key_names import bind, hint
from specchat.tui.tree.alternatives import (
    LIKELIEST,
    Alternative,
    Fork,
    alternative_lines,
    alternatives,
    before_line,
    explanation_lines,
)
from specchat.tui.widgets.painted_lines import LinesView

ONE_TOKEN = {
    "controller": "off", "drafter": "none", "policy": "chain", "rule": "follow", "temperature": 0.0, "max_tokens": 1,
}  # fmt: skip
"""Settings of the reply of one token by which the target is asked what it holds likely."""

_BORDER_LINES = 4


class AlternativesScreen(Page[Alternative | None]):
    """What the round's tree knows is shown at once; the target's likeliest follow when the engine answers."""

    DEFAULT_CSS = """
    AlternativesScreen > Vertical { width: 80; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape,q", "dismiss(None)", "close", "alternatives.close"),
        bind("up,k", "move(-1)", "the token above, which is likelier", "alternatives.up"),
        bind("down,j", "move(1)", "the token below", "alternatives.down"),
        bind("home", "move(-99)", "the likeliest token", "alternatives.first"),
        bind("end", "move(99)", "the last token", "alternatives.last"),
        bind("enter", "take", "go on from there, as a branch of the chat", "alternatives.take"),
    ]

    def __init__(self, context: AppServices, turn: Turn, fork: Fork) -> None:
        self._view = LinesView(self._paint)
        self._first = 0  # the alternative in the second line
        super().__init__(self._view)
        assert turn.reply is not None, "only replies have such places"
        self.context, self.turn, self.reply, self.fork = context, turn, turn.reply, fork
        self._asked, self._state = 0, ""  # the id of the question, until it is answered
        self._answered = False
        self.chosen = 0
        self._show_rows(alternatives(fork))

    def on_mount(self) -> None:
        engine = self.context.chat.engine
        self._ask(engine.pair if engine.phase == "ready" else "")

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case RoundDone() if event.id == self._asked:
                    before = self.rows[self.chosen] if self.rows else None
                    self._answered = True
                    self._show_rows(alternatives(self.fork, event), before)
                case Finished() if event.id == self._asked:
                    self._asked, self._state = 0, ""
                case Ready() if not (self._answered or self._asked):
                    self._ask(event.pair)
                case Failed() if event.id == self._asked:
                    self._asked, self._state = 0, visible(event.message)
                case _:
                    continue
            self.redraw()

    def action_move(self, by: int) -> None:
        if self.rows:
            self.chosen = max(0, min(len(self.rows) - 1, self.chosen + by))
            self.redraw()

    def action_take(self) -> None:
        if self.rows and not self.rows[self.chosen].forbidden:
            self.dismiss(self.rows[self.chosen])

    def on_unmount(self) -> None:
        if self._asked:
            self.context.session.send(Cancel(self._asked))

    def _ask(self, pair: str) -> None:
        """Ask the target for its likeliest tokens; it reads what its cache does not hold of the text before.

        Args:
            pair: the one that is loaded; empty where none is.
        """
        chat, session = self.context.chat, self.context.session
        if session.player is not None:
            self._state = "a recording: only guesses are known"
        elif not pair:
            self._state = "no model yet: only guesses are known"
        else:
            if pair != self.reply.facts.pair:  # numbers of tokens mean other tokens, or may do so
                self.fork = self.fork.by_texts
                self._show_rows(alternatives(self.fork))
            tokens, texts = self.fork.tokens, self.fork.texts
            self._asked = next(self.context.race_ids)
            self._state = "asked once the reply is written" if chat.writing else f"asking {pair} …"
            session.send(
                Generate(
                    self._asked,
                    chat.before_reply(self.turn),
                    apart=ONE_TOKEN,
                    begun=[] if tokens is not None else texts,
                    begun_tokens=tokens or [],
                    logprobs=False,
                    constraint=self.reply.constraint,
                    top_logprobs=LIKELIEST,
                    keep=chat.keep,
                )
            )
        self.redraw()

    def _show_rows(self, rows: list[Alternative], before: Alternative | None = None) -> None:
        """Show these, the one that was chosen before still chosen, else the one that was drawn."""
        self.rows = rows
        same = (at for at, row in enumerate(rows) if before is not None and row.token == before.token)
        drawn = next((at for at, row in enumerate(rows) if row.drawn), 0)
        self.chosen = next(same, drawn)

    def _explanation(self, width: int) -> list[ScreenLine]:
        return explanation_lines(self.rows, self.chosen, width, self.context.marks, self.reply.temperature)

    def redraw(self) -> None:
        width = self._view.size.width or 1
        below = self._explanation(width)
        wanted = 1 + max(1, len(self.rows)) + len(below)
        self._view.styles.height = max(2, min(wanted, self.app.size.height - _BORDER_LINES))
        titles = " · ".join(filter(None, ["what else could stand here", self._state])), self._state
        title = next((title for title in titles if title and len(title) <= width), titles[0])
        takes = "" if self.context.session.player else hint(self, "alternatives.take", "goes on from there")
        self.entitle(title, " · ".join(filter(None, [takes, hint(self, "alternatives.close", "closes")])))
        self._view.repaint()

    def _paint(self, width: int, height: int) -> list[ScreenLine]:
        """The text before, the alternatives, and what became of the chosen one; in a low window the last gives way."""
        below = self._explanation(width)[: max(0, height - 1 - min(4, max(1, len(self.rows))))]
        room = max(1, height - 1 - len(below))
        self._first, lines = alternative_lines(self.rows, self.chosen, width, room, self.context.marks)
        lines = lines or [[("nothing else is known of this place", "dim")]]
        return [before_line(self.fork, width), *lines, *below]

    def on_click(self, event: Click) -> None:
        """Choose the alternative that was clicked; if it was chosen, as Enter does."""
        offset = event.get_content_offset(self._view)
        if offset is None or offset.y < 1 or (at := self._first + offset.y - 1) >= len(self.rows):
            return
        if at == self.chosen:
            self.action_take()
        else:
            self.action_move(at - self.chosen)
