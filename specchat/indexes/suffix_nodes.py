"""The nodes of a suffix tree, and places in it."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass


class Node:
    """A run of tokens; its label text[start : start + length] is what it adds to its parent's run of `top` tokens.

    The label lies where the whole run occurs, so the parent's label stands right before it. `count` is how often a
    run goes through the label to its end, `ends` how many of those occurrences nothing follows; counts of children and
    ends add up to it. The label of a leaf that only the growing text reaches may be longer than what is written of
    it: it grows by itself. `inside` holds where those runs begin, ascending, that end the growing text and end within
    the label.
    """

    __slots__ = ("children", "count", "ends", "inside", "length", "parent", "start", "text", "top")

    def __init__(self, parent: Node | None, text: list[int], start: int, length: int, top: int) -> None:
        self.parent = parent
        self.text = text
        self.start = start
        self.length = length
        self.top = top
        self.count = 0
        self.ends = 0
        self.inside: list[int] = []
        self.children: dict[int, Node] = {}

    @property
    def first(self) -> int:
        """The first token on the edge to this node."""
        return self.text[self.start]

    @property
    def written(self) -> int:
        """Tokens of the label that there are."""
        return min(self.length, len(self.text) - self.start)

    @property
    def end(self) -> int:
        """How long the node's whole run is."""
        return self.top + self.length

    def take_out(self) -> int:
        """The longest of the runs inside went through the label to its end; returns where it begins."""
        self.count += 1
        return self.inside.pop(0)


@dataclass(frozen=True, slots=True)
class Place:
    """A run that occurs in the tree: `into` tokens into a node's label (its whole label: at the node).

    It holds for as long as the tree's growing text, `growing`, does not grow.
    """

    node: Node
    into: int
    growing: Sequence[int]

    @property
    def count(self) -> int:
        """How often the run occurs."""
        node = self.node
        return node.count + self._reaching(self.into) if node.inside else node.count

    @property
    def followed(self) -> int:
        """How many of its occurrences something follows, as far as the tree looks."""
        node = self.node
        followed = node.count - (node.ends if self.into == node.written else 0)
        return followed + self._reaching(self.into + 1) if node.inside else followed

    def next(self, least: float = 1) -> list[tuple[int, Place]]:
        """What follows the run at least so often: (token, place of the longer run), in no order."""
        node = self.node
        if self.into < node.written:
            following = [(node.text[node.start + self.into], Place(node, self.into + 1, self.growing))]
        else:
            following = [(token, Place(child, 1, self.growing)) for token, child in node.children.items()]
        return [(token, place) for token, place in following if place.count >= least]

    def _reaching(self, into: int) -> int:
        """How many of the runs inside the label reach so far."""
        return bisect.bisect_right(self.node.inside, len(self.growing) - self.node.top - into)


def join(node: Node) -> None:
    """Put a node into its only child, if no text ends at it: both occur at the same places."""
    if node.ends or len(node.children) != 1 or node.parent is None:
        return
    (child,) = node.children.values()
    child.start -= node.length
    child.length += node.length
    child.top = node.top
    child.parent = node.parent
    node.parent.children[child.first] = child


def point_elsewhere(node: Node, text: list[int]) -> None:
    """Let a label that lies in a text to be forgotten lie elsewhere: before a child's label, or in a copy."""
    if node.text is not text:
        return
    if node.children:
        child = next(iter(node.children.values()))
        node.text, node.start = child.text, child.start - node.length
        return
    run: list[int] = []
    above: Node | None = node
    while above is not None:
        run[:0] = above.text[above.start : above.start + above.length]
        above = above.parent
    node.text, node.start = run, len(run) - node.length
