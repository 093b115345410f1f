"""`/lesson`: lessons in the tour's frame, about the last reply; the engine is asked for what its rounds do not tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specchat.engine.protocol.events import Died, Event, Failed, Ready, WouldBe
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError
from specchat.tui.screens.chat_view import ChatView
from specchat.tui.state.turn import Reply
from specchat.tui.state.what_if import QUICK_TOKENS, RedoneReply
from specchat.tui.tree.lessons import TITLES, Entries, LessonFacts, asks, lesson_page
from specchat.tui.tree.picture import Marks
from specchat.tui.widgets.tour import TourView


class LessonView(TourView):
    """A page for each lesson; small screens part it, as they do those of the tour."""

    DEFAULT_CSS = """
    LessonView { height: 100%; min-height: 4; }
    LessonView.-below { min-height: 4; }
    """
    pages = len(TITLES)

    def __init__(
        self, facts: Callable[[], LessonFacts], turned: Callable[[int], None], first: int, marks: Marks
    ) -> None:
        super().__init__()
        self._facts, self._turned, self.page, self._marks = facts, turned, first, marks

    def on_mount(self) -> None:
        self._turned(self.page)

    def next_page(self) -> bool:
        goes_on = super().next_page()
        if goes_on:
            self._turned(self.page)
            self.repaint()
        return goes_on

    def page_of(self, page: int, column: int, room: int) -> tuple[str, Entries]:
        return lesson_page(page, self._facts(), column, self._marks)


class Lessons:
    """Shows them, and asks the engine for what a lesson lacks."""

    def __init__(self, view: ChatView) -> None:
        self._view, self._chat, self._context = view, view.chat, view.context
        self._of: Reply | None = None  # the reply that the answers are about
        self._answers: dict[str, WouldBe] = {}
        self._asked, self._asked_for, self._waits = 0, "", ""

    async def run(self, argument: str) -> None:
        """Begin with this lesson, or with the first.

        Raises:
            UsageError: there is no such lesson.
        """
        if argument and not (argument.isdecimal() and len(argument) == 1 and 1 <= int(argument) <= len(TITLES)):
            named = ", ".join(f"{number} {title.lower()}" for number, title in enumerate(TITLES, 1))
            raise UsageError(f"/lesson takes a number: {named}")
        page = LessonView(self._facts, self._ask_for, int(argument or 1) - 1, self._context.marks)
        await self._view.start_pages.show_tour(page)
        self._view.prompt.focus()

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case WouldBe() if event.id == self._asked:
                    self._waits = "the engine had something else to do; /lesson asks again" if event.stopped else ""
                    if not event.stopped:
                        self._answers[self._asked_for] = event
                case Failed() if event.id == self._asked:
                    self._waits = visible(event.message)
                case Died():
                    self._waits = "the engine stopped"
                case Ready():
                    self._view.call_later(self._ask_again)  # once the event is applied
                    continue
                case _:
                    continue
            self._asked = 0
            for page in self._view.transcript.query(LessonView):
                page.repaint()

    def _ask_again(self) -> None:
        for page in self._view.transcript.query(LessonView):
            self._ask_for(page.page)
            page.repaint()

    def _facts(self) -> LessonFacts:
        reply = self._chat.last_reply()
        if reply is None or not reply.rounds:
            return LessonFacts()
        if reply is not self._of:
            self._of, self._answers, self._waits = reply, {}, ""
        stats = reply.figures.known_stats()
        return LessonFacts(
            reply.rounds.list,
            stats.prompt_tokens if stats is not None else 0,
            self._answers.get("plain"),
            self._answers.get("chain"),
            self._waits,
            reply.figures.speedup.text if reply.figures.speedup is not None else "",
        )

    def _ask_for(self, lesson: int) -> None:
        reply, facts = self._chat.last_reply(), self._facts()
        if self._asked or reply is None or (wanted := asks(lesson, facts)) is None:
            return
        self._asked_for, changes = wanted
        try:
            redone = RedoneReply.of(self._chat, reply, most=QUICK_TOKENS)
        except UsageError as error:
            self._waits = str(error)
            return
        self._asked, self._waits = next(self._context.race_ids), "the engine does your reply once more …"
        self._context.session.send(redone.ask(self._chat, self._asked, changes))
