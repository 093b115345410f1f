"""Everything that was said in a chat, as a tree, and the one path through it that is being read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar


class Node(Protocol):
    """Something that was said, and what it answers."""

    id: str
    parent: str | None
    place: tuple[int, int]  # `(2, 3)`: the second of three that were said in the same place


_N = TypeVar("_N", bound=Node)


class Branches(Generic[_N]):
    """Nothing that was said is ever lost: another answer, another question begin another branch."""

    def __init__(self) -> None:
        self._path: list[_N] = []
        self._children: dict[str | None, list[_N]] = {}
        self._followed: dict[str | None, _N] = {}  # where the path went on, the last time it came by

    @property
    def path(self) -> Sequence[_N]:
        """From the first message down to the last."""
        return self._path

    def __iter__(self) -> Iterator[_N]:
        """Every node there is, each after the one it answers."""
        waiting = list(reversed(self._children.get(None, [])))
        while waiting:
            yield (node := waiting.pop())
            waiting += reversed(self._children.get(node.id, []))

    def add(self, node: _N) -> None:
        """Say this after the last message of the path."""
        node.parent = self._path[-1].id if self._path else None
        self._grow(node)
        self._followed[node.parent] = node
        self._path.append(node)

    def restore(self, nodes: Iterable[_N], leaf: str | None) -> None:
        """Take over a whole tree, parents first, and read the path that ends in `leaf` (or the newest one)."""
        self.clear()
        known: dict[str | None, _N] = {}
        last: _N | None = None
        for last in nodes:
            known[last.id] = last
            self._children.setdefault(last.parent, []).append(last)
        for siblings in self._children.values():
            _number(siblings)
        end = known.get(leaf, last)
        while end is not None:
            self._followed[end.parent] = end
            end = known.get(end.parent)
        self._follow()

    def siblings(self, node: _N) -> Sequence[_N]:
        """The node and what was said in its place, oldest first."""
        return self._children.get(node.parent, [node])

    def switch(self, node: _N, step: int) -> _N | None:
        """Read the next or previous sibling instead, down to where it was left; None if there is none."""
        siblings = self.siblings(node)
        at = node.place[0] - 1 + step
        if not 0 <= at < len(siblings):
            return None
        self.cut(node)
        self._followed[node.parent] = siblings[at]
        self._follow()
        return siblings[at]

    def cut(self, node: _N) -> None:
        """End the path before this node of it; what follows stays in the tree."""
        del self._path[self.depth(node) :]

    def depth(self, node: _N) -> int:
        """Where on the path the node is."""
        return next(i for i, other in enumerate(self._path) if other is node)

    def clear(self) -> None:
        """Begin with nothing."""
        self._path.clear()
        self._children.clear()
        self._followed.clear()

    def _grow(self, node: _N) -> None:
        siblings = self._children.setdefault(node.parent, [])
        siblings.append(node)
        _number(siblings)

    def _follow(self) -> None:
        """Lengthen the path as far down as it goes."""
        while children := self._children.get(self._path[-1].id if self._path else None):
            parent = self._path[-1].id if self._path else None
            self._path.append(self._followed.get(parent, children[-1]))


def _number(siblings: Sequence[_N]) -> None:
    for number, sibling in enumerate(siblings, 1):
        sibling.place = number, len(siblings)
