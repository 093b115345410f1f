"""The best-first search in C: the guesses of several members in one tree, without a call into Python for each level."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from contextlib import AbstractContextManager

from specchat.core.compiled_guessing import Asked, CompiledLookup, CompiledNetwork, CompiledTable, GrowthPlan
from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.sampling import Sampling
from specchat.core.target_draw import CSampling, as_c
from specchat.indexes.native_suffix_tree import suffix_library
from specchat.indexes.running_estimates import rate

MOST_MEMBERS = 3
MOST_WIDTH = 64
MOST_DOUBLINGS = 6
"""joined_guesses.h has the same numbers."""

SURENESSES = 2 * MOST_DOUBLINGS + 2
_NO_MEMORY, _MISSING_INPUT = 1, 3
_MOST = 2**31 - 1

Found = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[float]]
"""Of the nodes below the root, parents first: their parents, tokens, cells and log-probabilities."""


class _CAsked(ctypes.Structure):
    """`Asked` of growing_tree.h."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("trees", "limits", "successors", "by_rank")],
        ("probability", ctypes.c_double),
        *[(name, ctypes.c_void_p) for name in ("read", "network")],
        *[(name, ctypes.c_int32) for name in ("count", "tokens", "logits", "one_pass")],
    ]


class _CSampled(ctypes.Structure):
    """`Sampled` of network_guesses.h."""

    _fields_ = [
        ("how", CSampling),
        ("often", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("known", "position")],
        ("key", ctypes.c_uint64),
    ]


class _CSearch(ctypes.Structure):
    """`Search` of growing_tree.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("members", "nodes", "depth", "width", "batch", "prices")],
        *[
            (name, ctypes.c_int32)
            for name in ("calls", "levels", "beams", "repeat", "tail", "passes", "missing", "found")
        ],
        *[(name, ctypes.c_int32) for name in ("apart", "top", "first_come")],
        *[(name, ctypes.c_void_p) for name in ("text", "price")],
        *[(name, ctypes.c_double) for name in ("floor", "decay", "pass_price", "sure", "fallback")],
        *[(name, ctypes.c_void_p) for name in ("widths", "begins", "below", "hits", "trials")],
        ("sampled", _CSampled),
        ("asked", _CAsked * MOST_MEMBERS),
        ("reads", ctypes.c_int32 * MOST_MEMBERS),
        *[(name, ctypes.c_void_p) for name in ("parents", "tokens", "cells", "logprobs")],
    ]


class GuessSearch:
    """Grows one tree after another, and learns from the last one which guesses were right.

    A *cell* says who guessed a token and how surely: for each member, the first in the lowest place, a digit to the
    base `SURENESSES`, 0 where it did not guess it.

    Raises:
        NativeUnavailable: when it is made, where it cannot be compiled.
    """

    def __init__(self, members: int, sure: float, learns: bool = True, apart: bool = False, top: int = 0) -> None:
        """Without a tree.

        Args:
            sure: a network is not asked where another member has a guess at least so likely.
            learns: whether a guess is as likely as similar guesses were right; else as likely as the one member says.
            apart: whether each member is asked only about the root and below its own guesses.
            top: other members' guesses stay only if they are among this many of the first member's likeliest, where it
                has any; 0: all stay.
        """
        assert 1 <= members <= MOST_MEMBERS, "few members"
        assert learns or members == 1, "guesses of several members are weighed by what was right"
        library = suffix_library()
        self._grow, self._learn = library.guess_search, library.guess_search_learn
        self._growing = library.guess_search_new()
        if not self._growing:
            raise MemoryError("no memory for a search")
        weakref.finalize(self, library.guess_search_free, self._growing)
        self._c = _CSearch(members=members, sure=sure, apart=apart, top=top)
        self._hits, self._trials = (array("d", bytes(8 * SURENESSES**members)) for _ in range(2))
        self._counts = tuple(counts.buffer_info()[0] if learns else None for counts in (self._hits, self._trials))
        self._c.hits, self._c.trials = self._counts
        self._plan: GrowthPlan | None = None  # as C has it, like what follows
        self._prices, self._text = array("d"), array("i")
        self._asked: Sequence[Asked] = ()
        self._turns: Sequence[AbstractContextManager[object]] = ()
        self._sampling: Sampling | None = None  # as C has it
        self._draws = False  # whether it takes more than the sampling to know what networks guess
        self._make_room(64)

    def rate(self, cell: int, claimed: float) -> float:
        """How often guesses of this cell are right; see `LearntRates`."""
        return rate(self._hits[cell], self._trials[cell], claimed)

    def count(self, cell: int, right: bool) -> None:
        self._hits[cell] += right
        self._trials[cell] += 1

    def grow(self, context: Context, plan: GrowthPlan, members: Sequence[Asked]) -> Found | int | None:
        """The nodes of most worth; or a token that a network must know first; or None: it takes too many rows."""
        search = self._c
        self._ask(members)
        self._sample(context)
        if plan is not self._plan:
            self._follow(plan)
        if plan.repeat:
            self._text = array("i", context.history[-plan.repeat :])
            search.text, search.tail = self._text.buffer_info()
        outcome = self._in_turn(context.root, self._turns)
        if outcome == _NO_MEMORY:
            raise MemoryError("no memory for a search")
        if outcome:
            return int(search.missing) if outcome == _MISSING_INPUT else None
        some = slice(search.found)
        return self._parents[some], self._tokens[some], self._cells[some], self._logprobs[some]

    def reads(self, member: int) -> int:
        """How many times this network read for the last tree."""
        return int(self._c.reads[member])

    def learn(self, emitted: Sequence[int]) -> None:
        """Count which guesses of the last tree were right, whether or not they had a place in it."""
        tokens = array("i", emitted)
        self._learn(self._growing, *self._counts, *tokens.buffer_info())

    def _ask(self, members: Sequence[Asked]) -> None:
        """Let these be asked; mostly they are those of the last tree."""
        if members == self._asked:
            return
        for place, member in enumerate(members):
            self._c.asked[place] = _as_c(member)
        self._asked = members
        self._turns = [member.turn for member in members if isinstance(member, CompiledNetwork)]

    def _follow(self, plan: GrowthPlan) -> None:
        """Let trees be grown like this; mostly it is as the last tree was."""
        c, budget, shape = self._c, plan.budget, plan.shape
        if budget.nodes > self._room:
            self._make_room(budget.nodes)
        self._plan, self._prices = plan, array("d", budget.prices)
        c.nodes, c.depth, c.width, c.pass_price = budget.nodes, budget.depth, budget.width, budget.pass_price
        c.batch, c.floor, c.decay, c.fallback = plan.batch, plan.floor, plan.decay, plan.fallback
        c.levels, c.beams, c.repeat = plan.levels, min(plan.beams, _MOST), plan.repeat
        c.calls, c.passes = min(plan.calls, _MOST), budget.passes
        c.first_come = plan.first_come
        c.price, c.prices = self._prices.buffer_info()
        c.tail = 0
        arrays = (None,) * 3 if shape is None else (shape.widths, shape.begins, shape.below)
        c.widths, c.begins, c.below = (each and each.buffer_info()[0] for each in arrays)

    def _sample(self, context: Context) -> None:
        """Let networks guess what this sampling makes likely after this text."""
        sampling = context.sampling
        if sampling is not self._sampling:
            self._sampling, self._c.sampled.how = sampling, as_c(sampling)
            self._draws = sampling.penalised or not sampling.greedy
        if not self._draws:
            return
        c = self._c.sampled
        if sampling.penalised:
            _, _, c.often, c.known = context.counts.addresses()
        if not sampling.greedy:
            c.position, c.key = len(context.history), context.noise.stream_key(Stream.TARGET)

    def _in_turn(self, root: int, turns: Sequence[AbstractContextManager[object]]) -> int:
        """The outcome of a search that holds all of these."""
        if not turns:
            return int(self._grow(ctypes.byref(self._c), self._growing, root))
        with turns[0]:
            return self._in_turn(root, turns[1:])

    def _make_room(self, nodes: int) -> None:
        self._room = nodes
        self._parents, self._tokens, self._cells = (array("i", bytes(4 * nodes)) for _ in range(3))
        self._logprobs = array("d", bytes(8 * nodes))
        for name in ("parents", "tokens", "cells", "logprobs"):
            setattr(self._c, name, getattr(self, f"_{name}").buffer_info()[0])


def _as_c(asked: Asked) -> _CAsked:
    if isinstance(asked, CompiledLookup):
        trees, limits = asked.trees, asked.limits
        return _CAsked(trees=trees, limits=limits, probability=asked.probability, count=asked.count)
    if isinstance(asked, CompiledTable):
        table, by_rank = asked.successors, asked.by_rank
        return _CAsked(successors=table, by_rank=by_rank, count=asked.count, tokens=asked.tokens)
    return _CAsked(read=asked.read, network=asked.network, logits=asked.logits, one_pass=asked.one_pass)
