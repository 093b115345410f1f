"""The messages of a chat as a tree, the path through it that is shown, and which of its turns prompts contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from specchat.tui.state.turn import Turn


class MessageTree:
    """The tree of messages: editing or answering again adds a branch, and nothing is removed."""

    def __init__(self) -> None:
        self.path: list[Turn] = []
        self._children: dict[str | None, list[Turn]] = {}
        self._last_child: dict[str | None, Turn] = {}  # the child that the path last led to

    def __iter__(self) -> Iterator[Turn]:
        waiting = list(reversed(self._children.get(None, [])))
        while waiting:
            yield (turn := waiting.pop())
            waiting += reversed(self._children.get(turn.id, []))

    def add(self, turn: Turn) -> None:
        turn.parent = self.path[-1].id if self.path else None
        siblings = self._children.setdefault(turn.parent, [])
        siblings.append(turn)
        _set_places(siblings)
        self._last_child[turn.parent] = turn
        self.path.append(turn)

    def restore(self, turns: Iterable[Turn], leaf: str | None) -> None:
        """Load a whole tree, parents first, and show the path to `leaf` (or to the newest message)."""
        self.clear()
        known: dict[str | None, Turn] = {turn.id: turn for turn in turns}
        for turn in known.values():
            self._children.setdefault(turn.parent, []).append(turn)
        for siblings in self._children.values():
            _set_places(siblings)
        end = known.get(leaf, next(reversed(known.values()), None))
        while end is not None:
            self._last_child[end.parent] = end
            end = known.get(end.parent)
        self._extend_path()

    def siblings(self, turn: Turn) -> Sequence[Turn]:
        return self._children.get(turn.parent, [turn])

    def switch(self, turn: Turn, step: int) -> Turn | None:
        """Show the next or previous sibling and its last path; None if there is none."""
        siblings = self.siblings(turn)
        at = turn.place[0] - 1 + step
        if not 0 <= at < len(siblings):
            return None
        self.cut(turn)
        self._last_child[turn.parent] = siblings[at]
        self._extend_path()
        return siblings[at]

    def cut(self, turn: Turn) -> None:
        """End the path before this turn of it; what follows stays in the tree."""
        del self.path[self.depth(turn) :]

    def depth(self, turn: Turn) -> int:
        return next(i for i, other in enumerate(self.path) if other is turn)

    def last_with_siblings(self) -> Turn | None:
        return next((turn for turn in reversed(self.path) if turn.place[1] > 1), None)

    def clear(self) -> None:
        self.path.clear()
        self._children.clear()
        self._last_child.clear()

    def _extend_path(self) -> None:
        parent = self.path[-1].id if self.path else None
        while children := self._children.get(parent):
            self.path.append(self._last_child.get(parent, children[-1]))
            parent = self.path[-1].id


def _set_places(siblings: Sequence[Turn]) -> None:
    for number, sibling in enumerate(siblings, 1):
        sibling.place = number, len(siblings)


@dataclass
class SentTurns:
    """Where the turns that are sent begin. On a path without that turn all are sent."""

    first: str | None = None  # id of the first turn that is sent; None: the first of the chat
    left: str | None = None  # id of the last turn, where the next message is sent without any before it

    def of(self, path: Sequence[Turn]) -> Sequence[Turn]:
        start = next((at for at, turn in enumerate(path) if turn.id == self.first), 0)
        return path[start:]

    def before_next(self, path: Sequence[Turn]) -> Sequence[Turn]:
        """The turns of the path that are sent with the next message."""
        return () if path and path[-1].id == self.left else self.of(path)

    def leave_out(self, path: Sequence[Turn], count: int) -> None:
        """Leave out so many of the turns that are sent with the next message; all of them, where it stands alone."""
        sent = self.before_next(path)
        if count < len(sent):
            self.first = sent[count].id
        elif sent:
            self.left = sent[-1].id

    def begin_at(self, turn: Turn, path: Sequence[Turn]) -> None:
        """A message is added behind the path: it is the first that is sent, where all before it were left out."""
        if path and path[-1].id == self.left:
            self.first, self.left = turn.id, None
