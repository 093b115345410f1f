"""The sequential MLP's steps through the compiled kernels, in 8 bits: one call for a tree, or for a level of it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.states import HostRow
from specchat.errors import ModelError
from specchat.models.cpu_kernels.c_interface import CProduct, pointer
from specchat.models.cpu_kernels.kernels import Kernels
from specchat.models.cpu_kernels.linear import NativeHead
from specchat.models.cpu_kernels.logits_buffer import BEST


@dataclass(frozen=True)
class TokenRows:
    """Rows of some tokens.

    Args:
        rows: (m, d) float32.
        places: (tokens,) int32 where each token's row is, −1 for those without; tokens beyond have none.
    """

    rows: Tensor
    places: np.ndarray[Any, np.dtype[np.int32]]

    @cached_property
    def as_c(self) -> tuple[int, int, int, int]:
        """Address and number of the rows, and of the places; asking for addresses takes as long as a step."""
        assert self.places.dtype == np.int32, "as C reads them"
        rows = pointer("rows of tokens", self.rows, torch.float32, *self.rows.shape)
        return rows, len(self.rows), self.places.ctypes.data, len(self.places)


_FIRST_ROOM = 64

SPARE = 512
"""By so many tokens a head may grow before there must be more room."""

_MOST_AHEAD = 1024
"""The most rows that are read before any is asked for."""

Row = tuple[int, int]
"""The row that it follows, −1 where that is the text, and its token."""

States = HostRow | Tensor
"""The target's hidden states where a tree begins."""

Follows = tuple[int | None, int, int | None]
"""The address of the target's states, how far apart they are, and the address of what was made of them."""


class CStateMlp(ctypes.Structure):
    """`StateMlp` of hydra.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("hidden", "inner", "taps")],
        ("epsilon", ctypes.c_float),
        ("mlp_norm", ctypes.c_void_p),
        *[(name, CProduct) for name in ("fuse", "gate_up", "down")],
    ]


class CHydra(ctypes.Structure):
    """`Hydra` of hydra.h."""

    _fields_ = [("mlp", CStateMlp), ("back", CProduct)]


class CHydraTree(ctypes.Structure):
    """`HydraTree` of hydra_search.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("room", "known")],
        ("features", ctypes.c_void_p),
        ("apart", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("fused", "parents", "tokens", "states", "inputs")],
        ("input_rows", ctypes.c_int32),
        ("input_of", ctypes.c_void_p),
        ("tokens_known", ctypes.c_int32),
        *[(name, ctypes.c_void_p) for name in ("names", "logits", "best", "logprobs", "logsumexp")],
    ]


class CSearch(ctypes.Structure):
    """`Search` of hydra_search.h."""

    _fields_ = [*[(name, ctypes.c_int32) for name in ("nodes", "depth", "width", "prices")], ("price", ctypes.c_void_p)]


class _CHydraReader(ctypes.Structure):
    """`HydraReader` of hydra.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("team", "head", "hydra", "tree")]


class TreeRoom:
    """Room for what is said of a tree's rows: states (n, d), the likeliest tokens and their log-probabilities.

    Heads grow from tree to tree, so logits lie one row behind the other in a buffer that is used again.
    """

    def __init__(self, rows: int, hidden: int, width: int) -> None:
        self.rows, self.width = rows, width
        self.parents, self.tokens = np.empty(rows, np.int32), np.empty(rows, np.int32)
        self.states, self.logits = torch.empty(rows, hidden), torch.empty(rows * width)
        self.best, self.logprobs = np.empty((rows, BEST), np.int32), np.empty((rows, BEST), np.float32)
        self.logsumexp = np.empty(rows, np.float32)
        self.at = (
            *(self.parents.ctypes.data, self.tokens.ctypes.data, self.states.data_ptr()),
            *(self.logits.data_ptr(), self.best.ctypes.data, self.logprobs.ctypes.data),
            self.logsumexp.ctypes.data,
        )

    def as_c(self, named: NamedHead, follows: Follows, inputs: TokenRows, known: int, rows: int) -> CHydraTree:
        """For C: so many rows are known, and so many may be."""
        parents_at, tokens_at, states_at, *said_at = self.at
        rows_at = rows, known, *follows, parents_at, tokens_at, states_at
        return CHydraTree(*rows_at, *inputs.as_c, named.address, *said_at)

    def keep(self, other: TreeRoom, rows: int) -> None:
        """Take over the first rows of another one."""
        for name in ("parents", "tokens", "states", "best", "logprobs", "logsumexp"):
            getattr(self, name)[:rows] = getattr(other, name)[:rows]
        written = min(len(self.logits), len(other.logits))
        self.logits[:written] = other.logits[:written]


@dataclass(frozen=True)
class NamedHead:
    """A head, and the token that each of its rows stands for: (H,) int64."""

    head: NativeHead
    tokens: Tensor

    @cached_property
    def possible(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(H,) the same tokens."""
        named: np.ndarray[Any, np.dtype[np.int64]] = self.tokens.numpy()
        return named

    @cached_property
    def address(self) -> int:
        return pointer("the tokens of a head", self.tokens, torch.int64, len(self.head))


class StateMlp:
    """The text's states made into one, and an MLP on that and a token, for C.

    Attributes:
        as_c: `StateMlp` of hydra.h; valid as long as this lives.
    """

    def __init__(self, network: Any) -> None:
        """`network` is a head with `fuse`, `mlp_norm`, `gate_up` and `down`, whose products are `NativeLinear`."""
        sizes = network.sizes
        self.hidden, self.taps = sizes.hidden, len(sizes.taps)
        self._norm = network.mlp_norm.detach().float().contiguous()
        self._products = network.fuse.product, network.gate_up.product, network.down.product
        self.as_c = CStateMlp(
            *(sizes.hidden, sizes.inner, self.taps, sizes.epsilon),
            pointer("a norm", self._norm, torch.float32, sizes.hidden),
            *(product.as_c() for product in self._products),
        )

    def follow(self, states: States) -> Follows:
        """The address of the target's states, how far apart they are, and the address of what was made of them."""
        if isinstance(states, HostRow):
            sizes = states.layers, states.width
            if sizes != (self.taps, self.hidden):
                raise ModelError(f"the native kernels refuse states: {sizes}, not {(self.taps, self.hidden)}")
            return states.address, states.apart, None
        if states.dim() == 1:
            return None, self.hidden, pointer("states", states, torch.float32, self.hidden)
        shape, (apart, together) = states.shape, states.stride()
        if shape != (self.taps, self.hidden) or together != 1 or states.dtype != torch.float32:
            raise ModelError(f"the native kernels refuse states: {tuple(shape)}, not {(self.taps, self.hidden)}")
        return states.data_ptr(), apart, None


class _Reader:
    """A reader of one tree after another for other compiled code, as long as head, inputs and room stay."""

    def __init__(
        self,
        kernels: Kernels,
        threads: int,
        hydra: CHydra,
        named: NamedHead,
        inputs: TokenRows,
        room: TreeRoom,
        tree: CHydraTree,
    ) -> None:
        self._kernels, self._threads, self._tree = kernels, threads, tree
        self._given = named, inputs, room
        self._head = named.head.as_c
        self._states: States | None = None
        self._c = _CHydraReader(None, *(ctypes.addressof(each) for each in (self._head, hydra, tree)))
        self.network = CompiledNetwork(kernels.address_of("hydra_read_rows"), ctypes.addressof(self._c), self)

    def suits(self, named: NamedHead, inputs: TokenRows, room: TreeRoom, rows: int) -> bool:
        """Whether it reads with these, and so many rows."""
        ours = self._given
        return ours[0] is named and ours[1] is inputs and ours[2] is room and rows <= self._tree.room

    def begin(self, states: States, follows: Follows) -> None:
        """A tree begins behind these states."""
        self._states = states  # C has their address
        self._tree.known = 0
        self._tree.features, self._tree.apart, self._tree.fused = follows

    def __enter__(self) -> None:
        self._c.team = self._kernels.take_team(self._threads)

    def __exit__(self, *error: object) -> None:
        self._kernels.give_team_back()


class NativeHydra:
    """The rows of one tree after another. What is said of them may be written over once the next begins."""

    def __init__(self, kernels: Kernels, threads: int, network: Any) -> None:
        """No tree yet; `network` is a `models.draft_heads.hydra.Hydra` whose products are `NativeLinear`."""
        sizes = network.sizes
        self._kernels, self._threads = kernels, threads
        self._hidden = sizes.hidden
        self._mlp, self._back = StateMlp(network), network.back.product
        self._c = CHydra(self._mlp.as_c, self._back.as_c())
        kernels.check("hydra_check", self._c)
        self._room = TreeRoom(_FIRST_ROOM, sizes.hidden, 0)
        self._known = 0
        self._reader: _Reader | None = None

    def first(self, named: NamedHead, states: States, inputs: TokenRows, root: int, ahead: Ahead | None) -> list[Row]:
        """Begin a tree: read its root, and whatever below it would be asked for if this drafter were asked alone.

        Args:
            states: (taps, d) the target's states at the token before the root, each row without gaps; or where they
                lie; or (d,) what was made of them.
            inputs: what steps take of tokens; it knows the root.

        Returns:
            Of each row that was read the row it follows, −1 for the root's, and its token.
        """
        self._known = 0
        return self._read(named, self._mlp.follow(states), inputs, [-1], [root], _search(ahead))

    def after(self, named: NamedHead, inputs: TokenRows, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Read tokens behind other rows; `inputs` knows them."""
        self._read(named, (None, self._hidden, None), inputs, parents, tokens, None)

    def compiled(self, named: NamedHead, states: States, inputs: TokenRows, rows: int) -> CompiledNetwork:
        """Begin a tree that other compiled code reads, up to so many rows; the rest is as for `first`."""
        self._known, follows = 0, self._mlp.follow(states)
        reader = self._reader
        if reader is None or not reader.suits(named, inputs, self._room, rows):
            tree = self._tree(named, follows, inputs, 0, rows)
            reader = self._reader = _Reader(self._kernels, self._threads, self._c, named, inputs, self._room, tree)
        reader.begin(states, follows)
        return reader.network

    def said(self, named: NamedHead, rows: Sequence[int]) -> Guessed:
        room, width, known = self._room, len(named.head), self._known
        first, end = rows[0], rows[-1] + 1
        picked: Any = slice(first, end) if end - first == len(rows) == 1 else list(rows)
        said = room.best[picked], room.logprobs[picked]
        if width < BEST:
            said = said[0][:, :width], said[1][:, :width]
        every = named.possible, room.logsumexp[picked]
        return Guessed(*said, *every, lambda: room.logits[: known * width].view(known, width)[picked])

    def _read(
        self,
        named: NamedHead,
        follows: Follows,
        inputs: TokenRows,
        parents: Sequence[int],
        tokens: Sequence[int],
        search: CSearch | None,
    ) -> list[Row]:
        first, end = self._known, self._known + len(parents)
        if search is not None:
            end += min(_MOST_AHEAD, search.nodes * search.depth)
        tree, room = self._tree(named, follows, inputs, first, end), self._room
        room.parents[first : first + len(parents)], room.tokens[first : first + len(parents)] = parents, tokens
        self._kernels.hydra_read(self._threads, named.head.as_c, self._c, tree, len(parents), search)
        self._known = tree.known
        known = slice(first, self._known)
        return list(zip(room.parents[known].tolist(), room.tokens[known].tolist(), strict=True))

    def _tree(self, named: NamedHead, follows: Follows, inputs: TokenRows, first: int, end: int) -> CHydraTree:
        """For C: so many rows are known, and there is room for so many."""
        width = len(named.head)
        if end > self._room.rows or width > self._room.width:
            room = TreeRoom(max(end, self._room.rows), self._hidden, max(width, self._room.width) + SPARE)
            room.keep(self._room, first)
            self._room = room
        return self._room.as_c(named, follows, inputs, first, end)


def _search(ahead: Ahead | None) -> CSearch | None:
    """As C takes it; it refers to the prices."""
    if ahead is None or not ahead.budget.nodes or not ahead.width:
        return None
    budget, prices = ahead.budget, array("d", ahead.budget.prices)
    search = CSearch(budget.nodes, max(1, budget.depth), min(ahead.width, BEST), len(prices))
    if prices:
        search.prices_kept, search.price = prices, prices.buffer_info()[0]
    return search
