"""How often every short run of tokens occurred in some texts, and what followed it: a suffix tree with counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


class _Node:
    """A run of tokens; its label text[start : start + length] is what it adds to its parent's run.

    The label lies where the whole run occurs, so the parent's label stands right before it. `count` is how often
    the run occurs, `ends` how many of those occurrences nothing follows. So a node's count is the sum of its
    children's counts and its own ends. The label of a leaf that only the growing text reaches may be longer than what
    is written of it: it grows by itself.
    """

    __slots__ = ("children", "count", "ends", "length", "parent", "start", "text")

    def __init__(self, parent: _Node | None, text: list[int], start: int, length: int, count: int = 0) -> None:
        self.parent = parent
        self.text = text
        self.start = start
        self.length = length
        self.count = count
        self.ends = 0
        self.children: dict[int, _Node] = {}

    @property
    def first(self) -> int:
        return self.text[self.start]

    @property
    def written(self) -> int:
        """Tokens of the label that there are."""
        return min(self.length, len(self.text) - self.start)


@dataclass(frozen=True, slots=True)
class Place:
    """A run that occurs in the tree: `into` tokens into a node's label (its whole label: at the node)."""

    node: _Node
    into: int

    @property
    def count(self) -> int:
        """How often the run occurs."""
        return self.node.count

    @property
    def followed(self) -> int:
        """How many of its occurrences something follows, as far as the tree looks."""
        return self.node.count - (self.node.ends if self.into == self.node.written else 0)

    def next(self, least: float = 1) -> list[tuple[int, Place]]:
        """What follows the run at least so often: (token, place of the longer run), in no order."""
        node = self.node
        if self.into < node.written:
            return [(node.text[node.start + self.into], Place(node, self.into + 1))] if node.count >= least else []
        return [(token, Place(child, 1)) for token, child in node.children.items() if child.count >= least]


class SuffixTree:
    """All runs of up to `depth` tokens of several texts. Takes O(depth) per token; forgets the oldest texts.

    The runs that end where the growing text ends and that occur elsewhere too each point at a node of their own. A new
    token moves every one of them a step down: along a label (which splits: the part passed now occurs once more), or
    into a new leaf, which then grows by itself. A node that is left behind with one child and no ends of its own is
    joined with that child, so the nodes stay about as many as the tokens.

    Reference: the tree of Oliaro et al., SuffixDecoding, arXiv:2411.04975; the structure itself after Weiner (1973)
    and Ukkonen (1995), with counts and a depth limit instead of suffix links.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.clear()

    def clear(self) -> None:
        """Forget all texts."""
        self._root = _Node(None, [], 0, 0)
        self._text: list[int] = []
        self._moving: list[_Node] = []  # runs that end the growing text, but are no leaves: k tokens long, …, 2, 1
        self._growing: list[_Node] = []  # leaves that only the growing text has reached
        self._finished: deque[list[int]] = deque()
        self._tokens = 0

    def __len__(self) -> int:
        """Tokens of all texts."""
        return self._tokens

    @property
    def text(self) -> Sequence[int]:
        """The growing text."""
        return self._text

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the growing text."""
        for token in tokens:
            self._append(token)

    def end_text(self) -> None:
        """The growing text is complete; another one begins."""
        if self._text:
            self._finished.append(self._text)
        for leaf in self._growing:
            leaf.length = leaf.written
        self._text, self._moving, self._growing = [], [], []

    def forget_oldest(self) -> None:
        """Take the oldest complete text out: counts are as if it had never been there, and nothing refers to it."""
        text = self._finished.popleft()
        for start in range(len(text)):
            self._remove(text, start)
        self._tokens -= len(text)

    @property
    def finished(self) -> int:
        """Complete texts it holds."""
        return len(self._finished)

    def find(self, run: Sequence[int]) -> Place | None:
        """Where this run is, or None if it never occurred (or is longer than `depth`)."""
        node, into = self._root, 0
        at = 0
        while at < len(run):
            if into == node.length:
                child = node.children.get(run[at])
                if child is None:
                    return None
                node, into = child, 0
            step = min(node.length - into, len(run) - at)
            start = node.start + into
            if node.text[start : start + step] != list(run[at : at + step]):
                return None
            into += step
            at += step
        return Place(node, into)

    def count(self, run: Sequence[int]) -> int:
        """How often this run occurs in all texts."""
        place = self.find(run)
        return place.count if place is not None else 0

    def matches(self, text: Sequence[int], longest: int) -> list[tuple[int, Place]]:
        """(m, place) for m = 1, 2, … as long as the last m tokens of the text occurred and went on."""
        found: list[tuple[int, Place]] = []
        for size in range(1, min(longest, len(text), self.depth - 1) + 1):
            place = self.find(text[len(text) - size :])
            if place is None or place.followed == 0:
                break
            found.append((size, place))
        return found

    def _append(self, token: int) -> None:
        self._text.append(token)
        self._tokens += 1
        self._root.count += 1
        runs = (*self._moving, self._root)
        moved = (self._moved(node, len(runs) - 1 - place, token) for place, node in enumerate(runs))
        self._moving = [node for node in moved if node is not None]
        if len(self._moving) == self.depth:  # the longest run is as long as runs get
            del self._moving[0]

    def _moved(self, node: _Node, size: int, token: int) -> _Node | None:
        """The node of the run that is one token longer, which occurs once more now; None for a leaf.

        Args:
            size: how long the node's own run is.
        """
        child = node.children.get(token)
        leaf = child is None
        if child is None:
            child = _Node(node, self._text, len(self._text) - 1, self.depth - size)
            node.children[token] = child
            self._growing.append(child)
        elif child.length > 1:
            child = self._split(child, 1)
        child.count += 1
        child.ends += 1
        if node is not self._root:
            node.ends -= 1
            _join(node)
        return None if leaf else child

    @staticmethod
    def _split(node: _Node, length: int) -> _Node:
        """Cut a node after `length` tokens of its label; returns the upper part."""
        assert node.parent is not None, "the root has no label to split"
        upper = _Node(node.parent, node.text, node.start, length, node.count)
        node.parent.children[upper.first] = upper
        node.start += length
        node.length -= length
        node.parent = upper
        upper.children[node.first] = node
        return upper

    def _remove(self, text: list[int], start: int) -> None:
        """Uncount all runs that begin at one place of a complete text."""
        node, at, end = self._root, start, min(len(text), start + self.depth)
        passed: list[_Node] = []
        self._root.count -= 1
        while at < end:
            child = node.children[text[at]]
            child.count -= 1
            if child.count == 0:
                del node.children[text[at]]
                break
            passed.append(child)
            at += child.length
            node = child
        else:
            node.ends -= 1
        for node in reversed(passed):
            _point_elsewhere(node, text)
            _join(node)


def _join(node: _Node) -> None:
    """Put a node into its only child, if no text ends at it: both occur at the same places."""
    if node.ends or len(node.children) != 1 or node.parent is None:
        return
    (child,) = node.children.values()
    child.start -= node.length
    child.length += node.length
    child.parent = node.parent
    node.parent.children[child.first] = child


def _point_elsewhere(node: _Node, text: list[int]) -> None:
    """Let a label that lies in a text to be forgotten lie elsewhere: before a child's label, or in a copy."""
    if node.text is not text:
        return
    if node.children:
        child = next(iter(node.children.values()))
        node.text, node.start = child.text, child.start - node.length
        return
    run: list[int] = []
    above: _Node | None = node
    while above is not None:
        run[:0] = above.text[above.start : above.start + above.length]
        above = above.parent
    node.text, node.start = run, len(run) - node.length
