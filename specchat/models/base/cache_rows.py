"""Which cache row holds what: the bookkeeping of prefixes, rounds and kept paths that every cached model shares."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from specchat.core.record import record
from specchat.core.request import CHUNK_TOKENS, Rider
from specchat.core.tree import ROOT, TokenTree

LAZY_TOKENS = 8
"""So many missing tokens are read together with the next tree instead of in a pass of their own."""


@record
class Plan:
    """One pass over tokens still missing, then nodes, then riders; in this order the rows are written.

    Args:
        start: first row written, unless `places` says where the rows are written.
        missing: tokens of the prefix read on the way.
        nodes: (R,) nodes read.
        tokens: ids of missing tokens and nodes, riders excluded.
        positions: (rows,) position in the text of every row, riders included: never the row's own number.
        own_mask: (rows, …) bool, whom each row attends to, where `common` and `paths` do not say it.
        common: the first so many rows are attended to by all.
        paths: for each node and rider, the rows of its path, itself included. It attends to them and to all missing
            tokens; a missing token attends to those up to itself.
        borrowed: positions of the first rows, where only these of their text are there. Where each layer has rows of
            its own, those of the layers that see a window.
        places: where in the cache the rows are written, where they do not lie side by side.
    """

    start: int
    missing: int
    nodes: tuple[int, ...]
    tokens: list[int]
    positions: list[int]
    own_mask: Tensor | None
    common: int
    paths: Sequence[Sequence[int]] = ()
    borrowed: tuple[int, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def written(self) -> Sequence[int]:
        """The cache row of each row of the pass."""
        return self.places or range(self.start, self.start + len(self.positions))

    @cached_property
    def mask(self) -> Tensor:
        """(rows, start + rows) bool, whom each row attends to; made where it is asked for."""
        if self.own_mask is not None:
            return self.own_mask
        rows, missing, behind = len(self.positions), self.missing, self.start + self.missing
        mask = np.zeros((rows, self.start + rows), dtype=np.bool_)
        mask[:, : self.common] = True
        mask[:missing, self.start : behind] = np.tri(missing, dtype=np.bool_)
        mask[missing:, self.start : behind] = True
        # One assignment for all rows: each alone takes a microsecond.
        width = mask.shape[1]
        mask.reshape(-1)[[at * width + row for at, path in enumerate(self.paths, missing) for row in path]] = True
        return torch.from_numpy(mask)


class Rows:
    """Rows 0 to P − 1 hold the prefix; behind them lie the rows of this round's tree, in the order they were read."""

    def __init__(self) -> None:
        self.prefix: list[int] = []  # tokens whose rows are valid
        self._missing: list[int] = []  # tokens that belong to the prefix and are read with the next tree
        self._tree: TokenTree | None = None
        self._row_of: dict[int, int] = {}
        self._end = 0  # first row behind the tree's
        self._borrowed: list[int] = []  # positions of the borrowed rows, which come first
        self._borrowed_text = 0  # so many tokens of the prefix have no rows but those
        self._each_its_own = False  # those are the positions of layers that see a window; others hold others

    @property
    def held(self) -> int:
        """Rows of the prefix: one per token, unless only some of it was borrowed."""
        return len(self.prefix) - self._borrowed_text + len(self._borrowed)

    @property
    def whole(self) -> bool:
        """Whether every token of the prefix has a row, the one of its position."""
        return self.held == len(self.prefix)

    def rewind(self, tokens: Sequence[int]) -> list[int]:
        """Forget the tree and everything that differs from `tokens`; returns the tokens still to be read."""
        reused = common_prefix(self.prefix, tokens)
        if self._each_its_own and reused < self._borrowed_text:
            reused = 0  # as many rows would have to be left in every layer
        del self.prefix[reused:]
        if reused < self._borrowed_text:
            self._borrow(reused, [position for position in self._borrowed if position < reused])
        self._forget_tree()
        return list(tokens[reused:])

    def read_prefix(
        self, tokens: Sequence[int], read: Callable[[Plan], object], on_chunk: Callable[[int, int], None] | None
    ) -> None:
        """Make the prefix exactly these tokens: `read` is given a plan for every chunk that is still missing.

        A handful of missing tokens is put off until the next tree. `on_chunk(done, total)` may raise to stop; what
        was read so far counts.
        """
        missing = self.rewind(tokens)
        if len(missing) <= LAZY_TOKENS:
            self.put_off(missing)
            return
        for begin in range(0, len(missing), CHUNK_TOKENS):
            chunk = missing[begin : begin + CHUNK_TOKENS]
            read(self.plan_prefix(chunk))
            self.prefix_read(chunk)
            if on_chunk is not None:
                on_chunk(begin + len(chunk), len(missing))

    def put_off(self, missing: list[int]) -> None:
        """Read these prefix tokens together with the next tree."""
        assert len(missing) <= LAZY_TOKENS, "a long prefix is read in passes of its own"
        self._missing = missing

    def plan_prefix(self, tokens: list[int]) -> Plan:
        """A pass that reads more prefix. Call `prefix_read` when it is done."""
        start, count, first = self.held, len(tokens), len(self.prefix)
        return Plan(start, count, (), tokens, list(range(first, first + count)), None, start, borrowed=self._gaps())

    def prefix_read(self, tokens: list[int]) -> None:
        """A pass has read these tokens of the prefix: their rows are valid now."""
        self.prefix.extend(tokens)
        self._end = self.held

    def plan_tree(self, tree: TokenTree, new_nodes: Sequence[int] | None, riders: Sequence[Rider]) -> Plan:
        """A pass that reads nodes of a tree, missing prefix first. Call `tree_read` when it is done."""
        if self._tree is not tree:
            assert not self._row_of, "the last round was neither kept nor rewound"
            self._tree = tree
            self._end = self.held
        nodes = tuple(range(len(tree)) if new_nodes is None else new_nodes)
        missing = self._missing
        start, first_node = self._end, self._end + len(missing)
        first, after = len(self.prefix), len(self.prefix) + len(missing)
        positions = [*range(first, after), *[after + tree.depths[node] for node in nodes]]
        paths: dict[int, list[int]] = {-1: []}  # by node: the rows of the root, its ancestors and itself
        for row, node in enumerate(nodes, first_node):
            paths[node] = [*self._path_rows(tree, tree.parents[node], paths), row]
        seen = [paths[node] for node in nodes]
        rider_row = first_node + len(nodes)
        for index, rider in enumerate(riders):
            above = list(self._path_rows(tree, rider.parent, paths))
            position = after + tree.depths[rider.parent] + 1
            link = rider.after
            while link is not None:
                above.append(rider_row + link)
                position += 1
                link = riders[link].after
            seen.append([*above, rider_row + index])
            positions.append(position)
        tokens = [*missing, *[tree.tokens[node] for node in nodes]]
        return Plan(start, len(missing), nodes, tokens, positions, None, self.held, seen, self._gaps())

    def tree_read(self, plan: Plan) -> None:
        """A pass has read the nodes of the plan, and the prefix tokens that were put off: their rows are valid now."""
        if self._missing:
            assert not self._row_of, "missing tokens are read with a tree's first nodes"
            self.prefix.extend(self._missing)
            self._missing = []
        first_node = plan.start + plan.missing
        self._end = first_node + len(plan.nodes)
        self._row_of.update(zip(plan.nodes, range(first_node, self._end), strict=True))

    def keep(self, path: Sequence[int]) -> list[int]:
        """Rows to keep behind the prefix: the root's and the path's, as far as they were read. Ends the round."""
        kept: list[int] = []
        if self._tree is not None:
            for node in (ROOT, *path):
                if node not in self._row_of:
                    break
                kept.append(self._row_of[node])
                self.prefix.append(self._tree.tokens[node])
        self._forget_tree()
        return kept

    def pretend(self, tokens: int) -> None:
        """Count so many rows as read; no real text shares a prefix with them."""
        self._borrow(0, [])
        self.prefix = [-1] * tokens
        self._forget_tree()

    def borrow(self, tokens: Sequence[int], positions: Sequence[int], each_its_own: bool = False) -> None:
        """Count the rows at these positions of a text as read, and its other tokens as left out.

        Args:
            each_its_own: layers that see the whole text hold as many rows, each those of positions of its own.
        """
        self.prefix = list(tokens)
        self._borrow(len(tokens), positions, each_its_own)
        self._forget_tree()

    def plan_aside(self, tokens: Sequence[int]) -> Plan:
        """A pass over the first token of a text that has no row yet, or else its last one; its row is not kept.

        It sees the text before it, and is written where no row is in use.
        """
        held = min(common_prefix(self.prefix, tokens), len(tokens) - 1)
        assert self.whole, "all of the text before it is here"
        return Plan(self._end, 0, (ROOT,), [tokens[held]], [held], None, held, [[self._end]])

    def lent(self, tokens: Sequence[int], positions: Sequence[int]) -> int:
        """How many of the rows at these positions of a text are here already, borrowed and at the front."""
        same = 0 if self._each_its_own else common_prefix(self.prefix, tokens)
        return bisect.bisect_left(self._borrowed[: common_prefix(self._borrowed, positions)], same)

    def known(self) -> list[int]:
        """The tokens of the prefix that have a row."""
        return [*(self.prefix[position] for position in self._borrowed), *self.prefix[self._borrowed_text :]]

    def lend(self, positions: Sequence[int], held: int) -> tuple[list[int], Sequence[int], bool]:
        """Which of these positions of the first `held` tokens have a row, those rows, and `each_its_own` of `borrow`.

        Where each layer has rows of its own, those are lent only to who wants all of the text.
        """
        first, count = self._borrowed_text, len(self._borrowed)
        if self._each_its_own and held >= first and sum(position < held for position in positions) == held:
            return [*self._borrowed, *range(first, held)], range(count + held - first), True
        row_of = {} if self._each_its_own else {position: row for row, position in enumerate(self._borrowed)}
        there = [p for p in positions if p < held and (p >= first or p in row_of)]
        return there, [row_of[p] if p < first else p - first + count for p in there], False

    def _gaps(self) -> tuple[int, ...]:
        return tuple(self._borrowed) if len(self._borrowed) < self._borrowed_text else ()

    def _borrow(self, text: int, positions: Sequence[int], each_its_own: bool = False) -> None:
        self._borrowed_text, self._borrowed = text, list(positions)
        self._each_its_own = each_its_own

    def _forget_tree(self) -> None:
        self._tree = None
        self._row_of = {}
        self._missing = []
        self._end = self.held

    def _path_rows(self, tree: TokenTree, node: int, paths: dict[int, list[int]]) -> list[int]:
        """Whom a child of `node` attends to inside the tree; what was read in earlier passes is added to `paths`."""
        if node not in paths:
            paths[node] = [self._row_of[above] for above in (ROOT, *tree.path(node))]
        return paths[node]


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    shorter = min(len(first), len(second))
    if list(first[:shorter]) == list(second[:shorter]):
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])


def surviving(tree: TokenTree, alive: Sequence[int], stay: Collection[int]) -> set[int]:
    """The nodes that stay: those chosen whose parents stay too. The root always does.

    A parent that is not among `alive` was read in an earlier pass and stays.
    """
    considered = set(alive)
    gone: set[int] = set()
    for node in sorted(considered):
        if node != ROOT and (node not in stay or tree.parents[node] in gone):
            gone.add(node)
    return considered - gone
