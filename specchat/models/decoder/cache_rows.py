"""The rows of a cache by token: the bookkeeping of prefixes, rounds and kept paths that every cached model shares."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from specchat.core.record import record
from specchat.core.request import CHUNK_TOKENS, ExtraRow
from specchat.core.tree import ROOT, TokenTree

LAZY_TOKENS = 8
"""This many missing tokens are read together with the next tree instead of in a pass of their own."""


@record
class PassPlan:
    """One pass over tokens still missing, then nodes, then extra rows; in this order the rows are written.

    All rows see the cache's first `common` rows. Behind these lie rows that earlier passes read of the same tree, and
    then those of the pass, each behind one of them or behind the common ones: a row sees itself and all above it.

    Args:
        start: first row written.
        missing: tokens of the prefix read on the way, each behind the one before it; the root comes behind the last.
        nodes: (R,) nodes read.
        tokens: ids of missing tokens and nodes, extra rows excluded.
        common: the first so many rows are attended to by all.
        above: for each row behind the common ones, those of earlier passes included, which of them it follows,
            counted from the first of them; −1 for one that follows the common ones.
        first: position in the text of a row that follows these.
        copied: positions of the first rows, where only these of their text are there. Where each layer has rows of
            its own, those of the layers that see a window.
    """

    start: int
    missing: int
    nodes: tuple[int, ...]
    tokens: Sequence[int]
    common: int
    above: Sequence[int]
    first: int
    copied: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of the pass, extra rows included."""
        return self.common + len(self.above) - self.start

    @property
    def written(self) -> range:
        """The cache row of each row of the pass."""
        return range(self.start, self.start + self.rows)

    @property
    def end(self) -> int:
        """A position in the text that is beyond every row's."""
        return self.first + len(self.above)

    @cached_property
    def positions(self) -> list[int]:
        """(rows,) position in the text of every row, extra rows included: never the row's own number."""
        found: list[int] = []
        for above in self.above:
            found.append(self.first if above < 0 else found[above] + 1)
        return found[self.start - self.common :]

    @cached_property
    def mask(self) -> Tensor:
        """(rows, start + rows) bool, whom each row attends to; made where it is asked for."""
        behind = np.eye(len(self.above), dtype=np.bool_)
        for row, above in enumerate(self.above):
            if above >= 0:
                behind[row] |= behind[above]
        seen = behind[self.start - self.common :]
        return torch.from_numpy(np.concatenate([np.ones((len(seen), self.common), dtype=np.bool_), seen], axis=1))


class Rows:
    """Rows 0 to P − 1 hold the prefix; behind them lie the rows of this round's tree, in the order they were read."""

    def __init__(self) -> None:
        self.prefix: list[int] = []  # tokens whose rows are valid
        self._missing: list[int] = []  # tokens that belong to the prefix and are read with the next tree
        self._tree: TokenTree | None = None
        self._above: Sequence[int] = ()  # of each row of the tree that was read, which of them it follows; as in a plan
        self._place_of: Sequence[int] = ()  # of each node its place among them, −1 where it was not read
        self._copied: list[int] = []  # positions of the copied rows, which come first
        self._copied_text = 0  # so many tokens of the prefix have no rows but those
        self._each_its_own = False  # those are the positions of layers that see a window; others hold others

    @property
    def held(self) -> int:
        """Rows of the prefix: one per token, unless only some of it was copied."""
        return len(self.prefix) - self._copied_text + len(self._copied)

    @property
    def whole(self) -> bool:
        """Whether every token of the prefix has a row, the one of its position."""
        return self.held == len(self.prefix)

    @property
    def pretended(self) -> bool:
        """Whether rows were only counted as read."""
        return self.prefix[:1] == [-1]

    def rewind(self, tokens: Sequence[int]) -> list[int]:
        """Forget the tree and everything that differs from `tokens`; returns the tokens still to be read."""
        reused = common_prefix(self.prefix, tokens)
        if self._each_its_own and reused < self._copied_text:
            reused = 0  # as many rows would have to be left in every layer
        del self.prefix[reused:]
        if reused < self._copied_text:
            self._hold_copies(reused, [position for position in self._copied if position < reused])
        self._forget_tree()
        return list(tokens[reused:])

    def read_prefix(
        self,
        tokens: Sequence[int],
        read: Callable[[PassPlan], object],
        on_chunk: Callable[[int, int], None] | None,
        chunk_after: Callable[[int], int] = lambda tokens: CHUNK_TOKENS,
    ) -> None:
        """Make the prefix exactly these tokens: `read` is given a plan for every chunk that is still missing.

        A handful of missing tokens is put off until the next tree. `on_chunk(done, total)` may raise to stop; what
        was read so far counts. `chunk_after` says how large a chunk is behind so many tokens.
        """
        missing = self.rewind(tokens)
        if len(missing) <= LAZY_TOKENS:
            self._missing = missing
            return
        done = 0
        while done < len(missing):
            chunk = missing[done : done + chunk_after(len(self.prefix))]
            read(self.plan_prefix(chunk))
            self.prefix_read(chunk)
            done += len(chunk)
            if on_chunk is not None:
                on_chunk(done, len(missing))

    def plan_prefix(self, tokens: list[int]) -> PassPlan:
        """A pass that reads more prefix. Call `prefix_read` when it is done."""
        held, count = self.held, len(tokens)
        return PassPlan(held, count, (), tokens, held, range(-1, count - 1), len(self.prefix), self._gaps())

    def prefix_read(self, tokens: list[int]) -> None:
        """A pass has read these tokens of the prefix: their rows are valid now."""
        self.prefix.extend(tokens)

    def plan_tree(self, tree: TokenTree, new_nodes: Sequence[int] | None, extra_rows: Sequence[ExtraRow]) -> PassPlan:
        """A pass that reads nodes of a tree, missing prefix first. Call `tree_read` when it is done."""
        if self._tree is not tree:
            assert not self._above, "the last round was neither kept nor rewound"
            self._tree = tree
        held, missing = self.held, self._missing
        start, first, gaps = held + len(self._above), len(self.prefix), self._gaps()
        nodes = tuple(range(len(tree)) if new_nodes is None else new_nodes)
        above, tokens = tree.parents, tree.tokens
        if new_nodes is not None or missing or extra_rows:
            above, tokens = self._rows_above(tree, nodes, extra_rows), [*missing, *[tokens[node] for node in nodes]]
        return PassPlan(start, len(missing), nodes, tokens, held, above, first, gaps)

    def tree_read(self, plan: PassPlan) -> None:
        """A pass has read the nodes of the plan, and the prefix tokens that were put off: their rows are valid now."""
        missing, before, nodes = plan.missing, len(self._above), plan.nodes
        assert self._tree is not None, "a tree was read"
        if missing:
            assert not before, "missing tokens are read with a tree's first nodes"
            self.prefix.extend(self._missing)
            self._missing = []
        if plan.above is self._tree.parents:  # the whole tree, and nothing else: as nearly always
            self._above, self._place_of = tuple(plan.above), nodes
            return
        end = missing + before + len(nodes)
        self._above = [max(-1, above - missing) for above in plan.above[missing:end]]
        place_of = self._places(self._tree)
        for place, node in enumerate(nodes, before):
            place_of[node] = place
        self._place_of = place_of

    def keep(self, path: Sequence[int]) -> list[int]:
        """Rows to keep behind the prefix: the root's and the path's, as far as they were read. Ends the round."""
        kept: list[int] = []
        if self._tree is not None:
            held, tokens, place_of = self.held, self._tree.tokens, self._place_of
            for node in (ROOT, *path):
                if node >= len(place_of) or place_of[node] < 0:
                    break
                kept.append(held + place_of[node])
                self.prefix.append(tokens[node])
        self._forget_tree()
        return kept

    def fill_for_benchmark(self, tokens: int) -> None:
        """Count so many rows as read; no real text shares a prefix with them."""
        self._hold_copies(0, [])
        self.prefix = [-1] * tokens
        self._forget_tree()

    def copy_rows_from(self, tokens: Sequence[int], positions: Sequence[int], each_its_own: bool = False) -> None:
        """Count the rows at these positions of a text as read, and its other tokens as left out.

        Args:
            each_its_own: layers that see the whole text hold as many rows, each those of positions of its own.
        """
        self.prefix = list(tokens)
        self._hold_copies(len(tokens), positions, each_its_own)
        self._forget_tree()

    def plan_aside(self, tokens: Sequence[int]) -> PassPlan:
        """A pass over the first token of a text that has no row yet, or else its last one; its row is not kept.

        It sees the text before it, and is written where no row is in use.
        """
        held = min(common_prefix(self.prefix, tokens), len(tokens) - 1)
        assert self.whole, "all of the text before it is here"
        start = self.held + len(self._above)
        return PassPlan(start, 0, (ROOT,), [tokens[held]], held, [-1] * (start + 1 - held), held)

    def already_copied(self, tokens: Sequence[int], positions: Sequence[int]) -> int:
        """How many of the rows at these positions of a text are here already, copied and at the front."""
        same = 0 if self._each_its_own else common_prefix(self.prefix, tokens)
        return bisect.bisect_left(self._copied[: common_prefix(self._copied, positions)], same)

    def known(self) -> list[int]:
        """The tokens of the prefix that have a row."""
        return [*(self.prefix[position] for position in self._copied), *self.prefix[self._copied_text :]]

    def rows_to_copy(self, positions: Sequence[int], held: int) -> tuple[list[int], Sequence[int], bool]:
        """Which of these positions of the first `held` tokens have a row, those rows, and `each_its_own`.

        Where each layer has rows of its own, those are given only to a caller that wants all of the text.
        """
        first, count = self._copied_text, len(self._copied)
        if self._each_its_own and held >= first and sum(position < held for position in positions) == held:
            return [*self._copied, *range(first, held)], range(count + held - first), True
        row_of = {} if self._each_its_own else {position: row for row, position in enumerate(self._copied)}
        there = [p for p in positions if p < held and (p >= first or p in row_of)]
        return there, [row_of[p] if p < first else p - first + count for p in there], False

    def _gaps(self) -> tuple[int, ...]:
        return tuple(self._copied) if len(self._copied) < self._copied_text else ()

    def _hold_copies(self, text: int, positions: Sequence[int], each_its_own: bool = False) -> None:
        self._copied_text, self._copied = text, list(positions)
        self._each_its_own = each_its_own

    def _forget_tree(self) -> None:
        self._tree = None
        self._above = self._place_of = ()
        self._missing = []

    def _places(self, tree: TokenTree) -> list[int]:
        """The place of each node of the tree among the rows read so far, −1 where it was not read."""
        return [*self._place_of, *[-1] * (len(tree) - len(self._place_of))]

    def _rows_above(self, tree: TokenTree, nodes: Sequence[int], extra_rows: Sequence[ExtraRow]) -> list[int]:
        """`above` of a plan, for what was read and for missing tokens, nodes and extra rows that are read next."""
        place_of, missing = self._places(tree), len(self._missing)
        above = [*self._above, *range(-1, missing - 1)]
        for node in nodes:
            parent = tree.parents[node]
            assert parent < 0 or place_of[parent] >= 0, "a node is read after the one above it"
            place_of[node] = len(above)
            above.append(missing - 1 if parent < 0 else place_of[parent])
        first = len(above)
        above += [
            place_of[extra_row.parent] if extra_row.after is None else first + extra_row.after
            for extra_row in extra_rows
        ]
        return above


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    shorter = min(len(first), len(second))
    if list(first[:shorter]) == list(second[:shorter]):
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])
