"""A suffix tree with counts: how often every run of tokens up to a length occurred, and what followed it."""

from __future__ import annotations

import bisect
from collections import deque
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


class SuffixTree:
    """All runs of up to `depth` tokens of several texts. Takes O(depth) per token; forgets the oldest texts.

    The runs that end where the growing text ends and that occur elsewhere too move along the labels of the tree. Where
    the longest of them can go on with a new token, the shorter ones can too, so only the longest is looked at; where it
    cannot, it becomes a leaf, which then grows by itself. The others are touched only when they reach the end of
    a label, so a text that repeats itself costs hardly more than its length. Every node has a text that ends at it or
    two children, so the nodes stay about as many as the tokens.

    Reference: the tree of Oliaro et al., SuffixDecoding, arXiv:2411.04975; the structure itself after Weiner (1973)
    and Ukkonen (1995), with counts and a depth limit instead of suffix links.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.clear()

    def clear(self) -> None:
        self._root = Node(None, [], 0, 0, 0)
        self._finished: deque[list[int]] = deque()
        self._tokens = 0
        self._begin_text()

    def _begin_text(self) -> None:
        self._text: list[int] = []
        self._longest = 0  # where the longest run begins that ends the growing text and occurs elsewhere too
        self._node_of: dict[int, Node] = {}  # where such a run begins → the node it is inside
        self._due: dict[int, list[int]] = {}  # length of the text → runs that then are at the end of a label
        self._growing: list[Node] = []  # leaves that only the growing text has reached

    def __len__(self) -> int:
        """Tokens of all texts."""
        return self._tokens

    @property
    def text(self) -> Sequence[int]:
        return self._text

    def begins(self, text: Sequence[int]) -> bool:
        return list(text[: len(self._text)]) == self._text

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._append(token)

    def end_text(self) -> None:
        """The growing text is complete; another one begins."""
        if self._text:
            self._finished.append(self._text)
        for leaf in self._growing:
            leaf.length = leaf.written
        for begin in range(self._longest, len(self._text)):
            self._end_run(begin, len(self._text)).ends += 1
        self._begin_text()

    def forget_oldest(self) -> None:
        """Take the oldest complete text out: counts are as if it had never been there, and nothing refers to it."""
        assert not self._text, "texts are forgotten between two texts"
        text = self._finished.popleft()
        for start in range(len(text)):
            self._remove(text, start)
        self._tokens -= len(text)

    @property
    def finished(self) -> int:
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
        return Place(node, into, self._text)

    def count(self, run: Sequence[int]) -> int:
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
        end = len(self._text)
        self._text.append(token)
        self._tokens += 1
        self._root.count += 1
        while self._longest <= end and not self._goes_on(self._longest, end, token):
            self._add_leaf(self._end_run(self._longest, end), end)
            self._longest += 1
        for begin in self._due.pop(end, ()):
            node = self._node_of[begin]
            if begin >= self._longest and begin + node.end == end:  # else it was cut out of a label since
                node.take_out()
                self._enter(node.children[token], begin)
        if self._longest <= end:
            self._enter(self._root.children[token], end)
        if end + 1 - self._longest == self.depth:  # as long as runs get
            self._end_run(self._longest, end + 1).ends += 1
            self._longest += 1
        self._node_of.pop(end - self.depth, None)

    def _goes_on(self, begin: int, end: int, token: int) -> bool:
        """Whether this token follows the run anywhere else."""
        node = self._node_of[begin] if begin < end else self._root
        into = end - begin - node.top
        return node.text[node.start + into] == token if into < node.length else token in node.children

    def _end_run(self, begin: int, end: int) -> Node:
        """The node at which the longest run ends, made where there is none: it moves no further."""
        if begin == end:
            return self._root
        node = self._node_of[begin]
        into = end - begin - node.top
        if into < node.length:
            node = self._split(node, into)
        assert node.take_out() == begin, "the longest run of all is the longest inside its node"
        return node

    def _add_leaf(self, node: Node, start: int) -> None:
        """What the growing text alone goes on with, from `start` on."""
        leaf = Node(node, self._text, start, self.depth - node.end, node.end)
        leaf.count = leaf.ends = 1
        node.children[leaf.first] = leaf
        self._growing.append(leaf)

    def _enter(self, node: Node, begin: int) -> None:
        """A run goes on into a node's label."""
        node.inside.append(begin)
        self._node_of[begin] = node
        self._due.setdefault(begin + node.end, []).append(begin)

    def _split(self, node: Node, length: int) -> Node:
        """Cut a node after `length` tokens of its label, where its longest run is; returns the upper part."""
        assert node.parent is not None, "the root has no label to split"
        upper = Node(node.parent, node.text, node.start, length, node.top)
        upper.count = node.count
        node.parent.children[upper.first] = upper
        node.start += length
        node.length -= length
        node.top += length
        node.parent = upper
        upper.children[node.first] = node
        inside, node.inside = node.inside, []
        for begin in inside:  # all of them: none reaches further than the longest
            self._enter(upper, begin)
        return upper

    def _remove(self, text: list[int], start: int) -> None:
        """Uncount all runs that begin at one place of a complete text."""
        node, at, end = self._root, start, min(len(text), start + self.depth)
        passed: list[Node] = []
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
            point_elsewhere(node, text)
            join(node)
