"""The messages of a chat as a tree, and the path through it that is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar


class Node(Protocol):
    """A message, and the one before it."""

    id: str
    parent: str | None
    place: tuple[int, int]  # `(2, 3)`: the second of three siblings


_N = TypeVar("_N", bound=Node)


class MessageTree(Generic[_N]):
    """The tree of messages: editing or answering again adds a branch, and nothing is removed."""

    def __init__(self) -> None:
        self._path: list[_N] = []
        self._children: dict[str | None, list[_N]] = {}
        self._last_child: dict[str | None, _N] = {}  # the child that the path last led to

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
        """Add a message at the end of the path."""
        node.parent = self._path[-1].id if self._path else None
        self._add_child(node)
        self._last_child[node.parent] = node
        self._path.append(node)

    def restore(self, nodes: Iterable[_N], leaf: str | None) -> None:
        """Load a whole tree, parents first, and show the path to `leaf` (or to the newest message)."""
        self.clear()
        known: dict[str | None, _N] = {}
        last: _N | None = None
        for last in nodes:
            known[last.id] = last
            self._children.setdefault(last.parent, []).append(last)
        for siblings in self._children.values():
            _set_places(siblings)
        end = known.get(leaf, last)
        while end is not None:
            self._last_child[end.parent] = end
            end = known.get(end.parent)
        self._extend_path()

    def siblings(self, node: _N) -> Sequence[_N]:
        """The node and its siblings, oldest first."""
        return self._children.get(node.parent, [node])

    def switch(self, node: _N, step: int) -> _N | None:
        """Show the next or previous sibling and its last path; None if there is none."""
        siblings = self.siblings(node)
        at = node.place[0] - 1 + step
        if not 0 <= at < len(siblings):
            return None
        self.cut(node)
        self._last_child[node.parent] = siblings[at]
        self._extend_path()
        return siblings[at]

    def cut(self, node: _N) -> None:
        """End the path before this node of it; what follows stays in the tree."""
        del self._path[self.depth(node) :]

    def depth(self, node: _N) -> int:
        """Where on the path the node is."""
        return next(i for i, other in enumerate(self._path) if other is node)

    def last_with_siblings(self) -> _N | None:
        """The last node of the path that has siblings."""
        return next((node for node in reversed(self._path) if node.place[1] > 1), None)

    def clear(self) -> None:
        """Remove all messages."""
        self._path.clear()
        self._children.clear()
        self._last_child.clear()

    def _add_child(self, node: _N) -> None:
        siblings = self._children.setdefault(node.parent, [])
        siblings.append(node)
        _set_places(siblings)

    def _extend_path(self) -> None:
        """Extend the path to a leaf."""
        while children := self._children.get(self._path[-1].id if self._path else None):
            parent = self._path[-1].id if self._path else None
            self._path.append(self._last_child.get(parent, children[-1]))


def _set_places(siblings: Sequence[_N]) -> None:
    for number, sibling in enumerate(siblings, 1):
        sibling.place = number, len(siblings)
