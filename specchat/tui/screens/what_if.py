"""A page with a round as it was and as it would have been, and what that would have meant for the whole reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from textual.binding import BindingType

from specchat.engine.protocol.commands import Cancel
from specchat.engine.protocol.events import Event, Failed, Redoing, RoundDone, WouldBe
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError
from specchat.tui.screens.chat_view import ChatView
from specchat.tui.screens.page import Page
from specchat.tui.services.context import AppServices
from specchat.tui.state.turn import Reply
from specchat.tui.state.what_if import QUICK_TOKENS, RedoneReply, changes_since, changes_text, comparison, sentence
from specchat.tui.text.cells import ScreenLine, clip, padded, paragraph, titled_rule
from specchat.tui.text.key_names import bind, hint
from specchat.tui.tree import SteadyDrawing, picture_of
from specchat.tui.tree.panel_lines import best_round, legend_lines, title_of
from specchat.tui.widgets.painted_lines import LinesView

_BESIDE_FROM_CELLS = 84
_BEFORE_ASKING_S = 0.4
"""So long keys and changes may follow each other before the engine is asked."""

_DOING = "doing the reply once more"

_LADDERS: dict[str, tuple[int, ...]] = {
    "nodes": (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    "depth": (*range(1, 17), 24, 32, 64),
    "width": (1, 2, 3, 4, 6, 8, 16, 32, 64),
}


def _beside(name: str, now: float, by: int) -> int | None:
    """The next larger or smaller value of a setting; None at the end."""
    return next((value for value in _LADDERS[name][::by] if value * by > now * by), None)


class WhatIfScreen(Page[None]):
    """Keys change what is asked; each question ends the one before."""

    DEFAULT_CSS = """
    WhatIfScreen > Vertical { width: 100%; max-width: 160; height: 100%; max-height: 40; }
    WhatIfScreen LinesView { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape,q,w", "dismiss(None)", "close", "what_if.close"),
        bind("left,minus", "step('nodes', -1)", "fewer guesses", "what_if.fewer"),
        bind("right,plus", "step('nodes', 1)", "more guesses", "what_if.more"),
        bind("up", "step('depth', -1)", "less deep", "what_if.shallower"),
        bind("down", "step('depth', 1)", "deeper", "what_if.deeper"),
        bind("less_than_sign", "step('width', -1)", "fewer children of a node", "what_if.narrower"),
        bind("greater_than_sign", "step('width', 1)", "more children of a node", "what_if.wider"),
        bind("pageup", "turn(-1)", "the round before", "what_if.earlier"),
        bind("pagedown", "turn(1)", "the round after", "what_if.later"),
    ]

    def __init__(self, context: AppServices, reply: Reply, at: int, changes: Mapping[str, Any]) -> None:
        """Raises UsageError where the reply cannot be done once more."""
        self._view = LinesView(self._paint)
        super().__init__(self._view)
        self.context, self._at, self.changes = context, at, dict(changes)
        self._reply = reply
        self.redone = RedoneReply.of(context.chat, reply, at, alone=True)
        self._marks = context.marks
        self._drawings = SteadyDrawing(self._marks), SteadyDrawing(self._marks)
        self._asked = 0
        self.answer: WouldBe | None = None
        self._state = ""

    def on_mount(self) -> None:
        self._ask(at_once=True)

    def on_unmount(self) -> None:
        self._cancel()

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Redoing() if event.id == self._asked:
                    self._state = f"{_DOING} {event.done * 100 // max(1, event.total)} %"
                case WouldBe() if event.id == self._asked:
                    self._asked, self.answer = 0, None if event.stopped else event
                    self._state = "stopped: the engine had something else to do" if event.stopped else ""
                case Failed() if event.id == self._asked:
                    self._asked, self._state = 0, visible(event.message)
                case _:
                    continue
            self.redraw()

    def action_step(self, name: str, by: int) -> None:
        """Ask for the next larger or smaller value of a setting."""
        now = self.changes.get(name, self._reply.facts.settings.get(name, 0))
        if (further := _beside(name, now, by)) is not None:
            self.changes[name] = further
            self._ask()

    def action_turn(self, by: int) -> None:
        at = max(0, min(len(self._reply.rounds.list) - 1, self._at + by))
        if at != self._at:
            self._at, self.redone = at, RedoneReply.of(self.context.chat, self._reply, at, alone=True)
            self._ask()

    def _ask(self, *, at_once: bool = False) -> None:
        """Ask the engine; soon, as a rule, since more keys may follow. Where there is none, its rounds tell."""
        self._cancel()
        if self.redone.alone:
            try:
                self.answer = self.redone.tell(self.changes, self._at)
            except UsageError as error:
                self.answer, self._state = None, str(error)
            self.redraw()
            return
        self.answer, self._asked = None, next(self.context.race_ids)
        chat = self.context.chat
        self._state = "asked once the reply is written …" if chat.writing else f"{_DOING} …"
        asked = self._asked

        def send() -> None:
            if asked == self._asked:
                self.context.session.send(self.redone.ask(chat, asked, self.changes, self._at))

        if at_once:
            send()
        else:
            self.set_timer(_BEFORE_ASKING_S, send)
        self.redraw()

    def _cancel(self) -> None:
        if self._asked:
            self.context.session.send(Cancel(self._asked))
            self._asked = 0

    def redraw(self) -> None:
        closes = hint(self, "what_if.close", "closes").replace("Esc, q, w", "Esc")
        keys = f"← → nodes · ↑ ↓ depth · < > width · PgUp PgDn rounds · {closes}"
        self.entitle(f"what if · {changes_text(self.changes)}", keys)
        self._view.repaint()

    def _paint(self, width: int, height: int) -> list[ScreenLine]:
        """The sentence, then both trees side by side, or one above the other where the page is narrow."""
        was = self.redone.rounds[self._at]
        said, role, then = self._state, "dim", None
        if self.answer is not None:
            said = sentence(self.changes, self.answer, self.redone.part, alone=bool(self.redone.alone))
            role, then = "strong", self.answer.round
        head = paragraph(said, width, role)[: max(1, height // 3)]
        below = legend_lines(picture_of(was, self._marks), width, height, self._marks)
        room = max(2, height - len(head) - len(below) - 1)
        titles = f"round {self._at + 1} as it was", f"with {changes_text(self.changes)}"
        if width >= _BESIDE_FROM_CELLS:
            left = (width - 3) // 2
            columns = self._tree(titles[0], was, left, room, 0), self._tree(titles[1], then, width - 3 - left, room, 1)
            both = [[*padded(one, left), (" │ ", "line"), *other] for one, other in zip(*columns, strict=True)]
        else:
            upper = room // 2
            both = [*self._tree(titles[0], was, width, upper, 0), *self._tree(titles[1], then, width, room - upper, 1)]
        return [*head, [], *both, *below][:height]

    def _tree(self, title: str, round: RoundDone | None, width: int, height: int, which: int) -> list[ScreenLine]:
        """A tree under its title in exactly so many lines."""
        if round is None:
            lines: list[ScreenLine] = [titled_rule(title, width)]
        else:
            drawing = self._drawings[which].draw(
                round, picture_of(round, self._marks), width, max(1, height - 1), "auto", None
            )
            said = title_of(round) if len(round.tree.tokens) > 1 else f"no guesses: {visible(round.why)}"
            lines = [titled_rule(f"{title} · {said}", width), *(clip(line, width) for line in drawing.lines)]
        return [*lines, *([] for _ in range(height))][:height]


class WhatIfs:
    """Opens the page, and previews changes of settings on the last reply while the engine has nothing else to do."""

    def __init__(self, view: ChatView) -> None:
        self._view, self._chat, self._context = view, view.chat, view.context
        self._asked = 0  # the id of the question, until it is answered
        self._asked_for: object = None  # the reply and the changes that it is about
        self._known: tuple[object, str] = (None, "")  # the same of the last answer, and its words
        self._part = ""
        self._waits = False

    def open(self, changes: Mapping[str, Any], round: RoundDone | None = None) -> None:
        """Show what these changes would have meant for the reply whose tree is shown, in this round or its best one.

        Raises:
            UsageError: it cannot be done once more, and why.
        """
        reply = self._chat.shown_rounds.reply or self._chat.last_reply()
        if reply is None or self._chat.visible.served is not None:
            raise UsageError("there is no reply yet to do once more")
        rounds = reply.rounds.list
        at = next((n for n, one in enumerate(rounds) if one is round), None)
        at = (best_round(rounds) or 0) if at is None else at
        alone = RedoneReply.of(self._chat, reply, alone=True).alone
        if not changes and not alone:
            changes = changes_since(reply, self._chat.engine.settings)
        if not changes:
            nodes, by = int(reply.facts.settings.get("nodes", 8)), -1 if alone else 1
            beside = _beside("nodes", nodes, by)
            changes = {"nodes": 1 if beside is None else beside}
        self._context.app.push_screen(WhatIfScreen(self._context, reply, at, changes))

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if getattr(event, "id", None) != self._asked or not self._asked:
                continue
            match event:
                case WouldBe(stopped=True):
                    self._asked, self._asked_for = 0, None  # asked again when there is time
                case WouldBe():
                    self._known, self._asked = (self._asked_for, self._words(event)), 0
                case Failed():
                    self._known, self._asked = (self._asked_for, ""), 0
            self.update()

    def update(self) -> None:
        """Show in the form what is known of the changes since the last reply, and ask where nothing is."""
        reply, changes = self._pending()
        asks = self._about(reply, changes)
        if asks is None or asks != self._asked_for:
            self._cancel()
        known = self._known[1] if asks is not None and self._known[0] == asks else ""
        self._view.form.show_preview(next(reversed(changes), ""), known)
        if asks is not None and self._known[0] != asks and not self._asked and not self._waits:
            self._waits = True
            self._view.set_timer(_BEFORE_ASKING_S, self._ask)

    def _pending(self) -> tuple[Reply | None, dict[str, Any]]:
        """The last reply, and what changed since; nothing where no form shows it."""
        shown = self._view.has_class("-settings") or self._view.form is not self._view.settings_form
        reply = self._chat.last_reply() if shown else None
        return reply, {} if reply is None else changes_since(reply, self._chat.engine.settings)

    def _about(self, reply: Reply | None, changes: Mapping[str, Any]) -> object:
        """What a question would be about; None where none is to be asked now."""
        if reply is None or not changes or not self._chat.can_generate:
            return None
        return reply.id, reply.facts.seed, len(reply.text), repr(changes)

    def _ask(self) -> None:
        self._waits = False
        reply, changes = self._pending()
        if (asks := self._about(reply, changes)) is None or self._asked:
            return
        try:
            redone = RedoneReply.of(self._chat, reply, most=QUICK_TOKENS)
        except UsageError:
            self._known = asks, ""
            return
        self._asked, self._asked_for, self._part = next(self._context.race_ids), asks, redone.part
        self._context.session.send(redone.ask(self._chat, self._asked, changes))

    def _words(self, answer: WouldBe) -> str:
        """The sentence without what is known from above it; what is an estimate is called so first, if it is cut."""
        sure = answer.decided and answer.measured
        told = ", ".join(filter(None, (comparison(answer), self._part)))
        return f"{'the last reply' if sure else 'an estimate for the last reply'}: {told}"

    def _cancel(self) -> None:
        if self._asked:
            self._context.session.send(Cancel(self._asked))
            self._asked, self._asked_for = 0, None
