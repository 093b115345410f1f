"""The welcome page of an empty chat: a growing tree, the progress of loading, and questions to begin with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.events import Click, MouseMove
from textual.message import Message

from specchat.tui.state.chat import Chat
from specchat.tui.state.pair_list import Offer
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, bar, cut, paragraph, width_of, wrapped_lines
from specchat.tui.text.key_names import hint
from specchat.tui.tree import Marks
from specchat.tui.tree.growing_tree import LOWEST, NARROWEST, GrowingTree, growing_tree_lines
from specchat.tui.widgets.painted_lines import PaintedLines

SHOW = "/show "
"""What the last question begins with: it is asked in show mode."""

QUESTIONS = (
    "How do plants grow?",
    "Write a Python function that reverses a string.",
    "Give three reasons to drink water.",
    f"{SHOW}What is machine learning?",
)
_KEYS = ("question.first", "question.second", "question.third", "question.fourth")

_ABOUT = (
    "A drafter guesses a tree of tokens, the model reads the whole tree at once and keeps "
    "what it would have written itself. Watch it happen beside the text."
)
_ABOUT_NARROW = "Guessed in a tree, checked at once, kept where the model agrees."

_COLUMN, _TREE_COLUMN, _TREE_LINES = 62, 70, 12
"""The widest text, the widest tree, and the lines it takes where there is room."""

_LOW = 15
"""With fewer lines there is no room for a tree."""

_STATE_LINES = 4
"""Lines kept for the progress of loading while a tree is shown, so that the tree stays in its place."""


class Welcome(PaintedLines):
    """The empty page. It draws only while the tree grows or something is loaded."""

    DEFAULT_CSS = """
    Welcome { height: 1fr; min-height: 4; padding: 0 1; }
    """

    def __init__(self, chat: Chat, marks: Marks, elsewhere: Callable[[], bool]) -> None:
        """`elsewhere`: whether the growing tree is shown in another place, which has more room."""
        super().__init__()
        self._chat, self._marks, self._elsewhere = chat, marks, elsewhere
        self._tree: GrowingTree | None = None
        self._questions_at = 0  # the line of the first one
        self._asked_by: list[int] = []  # the question that stands in each line from there on
        self._pointed: int | None = None
        self.shows_offer = False
        """Whether the better pair stands on the page; in a low window it has no room."""

    @dataclass
    class QuestionChosen(Message):
        question: str

    def show_tree(self, tree: GrowingTree) -> None:
        self._tree = tree
        self.repaint()

    def on_mouse_move(self, event: MouseMove) -> None:
        self._point(self._question_at(event))

    def on_leave(self) -> None:
        self._point(None)

    def on_click(self, event: Click) -> None:
        if (clicked := self._question_at(event)) is not None:
            self.post_message(self.QuestionChosen(QUESTIONS[clicked]))

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """The name and the state, then what there is room for: first the questions, then the tree, then what it is."""
        column = min(width, _COLUMN)
        state = self._state(column)
        if self._shown_tree is not None and width >= NARROWEST and height >= _LOW:  # the tree stays where it is
            state += [[] for _ in range(_STATE_LINES - len(state))]
        room = height - 1 - len(state) - bool(state)
        found, room = _fitted(self._found(column), room)
        ready = self._chat.engine.phase == "ready"
        self.shows_offer = ready and bool(found) and self._chat.background.offer is not None
        questions = self._questions(column, room - 1)
        if self._shown_tree is not None and room - len(questions) - 2 < LOWEST <= room - len(QUESTIONS) - 2:
            questions = self._questions(column, len(QUESTIONS))
        questions, room = _fitted(questions, room)
        grown, wide = self._shown_tree, min(width, _TREE_COLUMN)
        tree = growing_tree_lines(grown, wide, min(room - 1, _TREE_LINES), self._marks) if grown is not None else []
        tree, room = _fitted(tree, room)
        about, room = _fitted(paragraph(_ABOUT if width >= 50 else _ABOUT_NARROW, column, "dim"), room)
        name = [_DOTS, _NAME] if room and not tree else [_NAME]
        above = [[_centred(line, width) for line in part] for part in (name, about)]
        below = [[_centred(line, width) for line in part] for part in (state, found)]
        return self._stacked([*above, _as_block(tree, width, wide), *below], _as_block(questions, width), height)

    def _stacked(self, parts: list[list[ScreenLine]], questions: list[ScreenLine], height: int) -> list[ScreenLine]:
        """The parts with a blank line between them, in the middle of the page; the questions come last."""
        lines: list[ScreenLine] = []
        for part in parts:
            lines += [[], *part] if lines and part else part
        used = len(lines) + len(questions) + bool(questions)
        lines = [*([] for _ in range((height - used) // 2)), *lines, *([[]] if questions else [])]
        self._questions_at = len(lines)
        return [*lines, *questions]

    @property
    def _shown_tree(self) -> GrowingTree | None:
        return None if self._elsewhere() else self._tree

    def _question_at(self, event: MouseMove | Click) -> int | None:
        offset = event.get_content_offset(self)
        at = offset.y - self._questions_at if offset is not None else -1
        return self._asked_by[at] if 0 <= at < len(self._asked_by) and self._questions_at else None

    def _point(self, question: int | None) -> None:
        if question != self._pointed:
            self._pointed = question
            self.repaint()

    def _questions(self, column: int, height: int) -> list[ScreenLine]:
        """Each question with its key, wrapped if the height allows it; the one under the pointer stands out."""
        keys = [hint(self, key, "") for key in _KEYS]
        wide = max(map(len, keys)) + 1
        wrapped = [wrapped_lines(said, column - wide) for said in QUESTIONS]
        if sum(map(len, wrapped)) > height:
            wrapped = [[cut(said, column - wide)] for said in QUESTIONS]
        self._asked_by = [at for at, parts in enumerate(wrapped) for _ in parts]
        roles = ["selected" if at == self._pointed else "text" for at in range(len(QUESTIONS))]
        return [
            [(("" if at else key).ljust(wide), "accepted"), (part, role)]
            for key, parts, role in zip(keys, wrapped, roles, strict=True)
            for at, part in enumerate(parts)
        ]

    def _found(self, column: int) -> list[ScreenLine]:
        """What would be better than a small model, or what other programs keep on this machine."""
        if (offer := self._chat.background.offer) is not None and self._chat.engine.phase == "ready":
            return _offered(offer, column, hint(self, "prompt.send", "").strip() or "Enter")
        if not (found := self._chat.background.found):
            return []
        adds = hint(self, "pair", "adds and loads it") or "/pair adds and loads it"
        return [*paragraph(found, column, "bonus"), [(adds, "dim")]]

    def _state(self, column: int) -> list[ScreenLine]:
        chat = self._chat
        if chat.engine.phase == "loading" and chat.engine.loading is not None:
            what, share, figures = numbers.loading(chat.engine.loading)
            cancels = f"{key} · " if (key := hint(self, "stop", "cancels")) else ""
            line: ScreenLine = [(bar(share, min(40, column)), "bar")] if share is not None else []
            below = paragraph(cancels + "you can already type", column, "dim")
            return [*paragraph(what, column, "text"), line, [(str(figures), "dim")], *below]
        if chat.engine.phase in ("starting", "loading"):
            name = chat.engine.loading_pair
            return [[(f"getting {name} ready; you can already type" if name else "starting", "dim")]]
        if chat.engine.ready is not None and chat.engine.phase == "ready":
            ready = chat.engine.ready
            target: ScreenLine = [(ready.target, "accepted")]
            draft = f"draft model {ready.draft}" if ready.draft else ""
            one: ScreenLine = [*target, (f" · {draft}" if draft else "", "dim")]
            place = " · ".join(part for part in (ready.device, ready.dtype) if part)
            return [*([one] if width_of(one) <= column else [target, [(draft, "dim")]]), [(place, "dim")]]
        return []


_NAME: ScreenLine = [("specchat", "strong")]
_DOTS: ScreenLine = [("●", "accepted"), ("━", "river"), ("●", "accepted"), ("━", "river"), ("★", "bonus"), (" ", "")]
"""A tree in one line, where no other is shown."""


def _offered(offer: Offer, column: int, key: str) -> list[ScreenLine]:
    toy = f"A model of {offer.size} is a quick toy."
    if not offer.name:
        return paragraph(f"{toy} It is fast, and often wrong.", column, "dim")
    size = f", {numbers.size(offer.fetch_bytes)}" if offer.fetch_bytes else ", which is here"
    speed = f", about {numbers.rate(offer.tokens_per_s)} tok/s here" if offer.tokens_per_s else ""
    does = "fetches it while you play" if offer.fetch_bytes else "loads it"
    return paragraph(f"{toy} Better: {offer.name}{size}{speed} · {key} {does}", column, "bonus")


def _fitted(lines: list[ScreenLine], room: int) -> tuple[list[ScreenLine], int]:
    """The lines, if there is room for them and a blank one, and the room that is left."""
    return (lines, room - len(lines) - 1) if lines and len(lines) < room else ([], room)


def _centred(line: ScreenLine, width: int) -> ScreenLine:
    return [(" " * max(0, (width - width_of(line)) // 2), ""), *line]


def _as_block(lines: list[ScreenLine], width: int, column: int = 0) -> list[ScreenLine]:
    """Lines that begin in the same column, so that a text of this width is centred, or else the widest of them."""
    left = max(0, (width - (column or max(map(width_of, lines), default=0))) // 2)
    return [[(" " * left, ""), *line] for line in lines]
