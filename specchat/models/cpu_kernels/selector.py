"""Heads that guess all depths of a tree, and their scores of pairs, through the compiled kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.drafting_networks import Guessed
from specchat.models.cpu_kernels.c_interface import CProduct, pointer
from specchat.models.cpu_kernels.hydra import (
    SPARE,
    CHydraTree,
    CStateMlp,
    NamedHead,
    StateMlp,
    States,
    TokenRows,
    TreeRoom,
)
from specchat.models.cpu_kernels.kernels import Kernels
from specchat.models.cpu_kernels.logits_buffer import BEST

_FIRST_ROOM = 1024


class CSelector(ctypes.Structure):
    """`Selector` of selector.h."""

    _fields_ = [
        ("mlp", CStateMlp),
        *[(name, ctypes.c_int32) for name in ("heads", "rank", "candidates")],
        ("mix", ctypes.c_void_p),
        *[(name, CProduct) for name in ("blocks", "gates")],
    ]


class CSelectorTree(ctypes.Structure):
    """`SelectorTree` of selector.h."""

    _fields_ = [
        ("heads", CHydraTree),
        *[(name, ctypes.c_int32) for name in ("room", "known")],
        *[(name, ctypes.c_void_p) for name in ("depths", "rows", "gates", "pairs")],
        ("pair_rows", ctypes.c_int32),
        ("pair_of", ctypes.c_void_p),
    ]


class CSelectorReader(ctypes.Structure):
    """`SelectorReader` of selector.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("team", "head", "selector", "tree")]


class NativeSelector:
    """The rows of one tree after another. What is said of them may be written over once the next begins.

    While it is entered, the threads are its own.
    """

    def __init__(self, kernels: Kernels, threads: int, network: Any, candidates: int) -> None:
        """No tree yet; `network` is a `models.draft_heads.selector.Selector` whose products are `NativeLinear`.

        Args:
            candidates: so many of the likeliest tokens of a depth are scored.
        """
        sizes = network.sizes
        self._kernels, self._threads, self._candidates = kernels, threads, candidates
        self._sizes, self._mlp = sizes, StateMlp(network)
        self._products = network.blocks.product, network.gates.product
        self._mix = network.mix.detach().float().contiguous()
        self._c = CSelector(
            *(self._mlp.as_c, sizes.heads, sizes.rank, candidates),
            pointer("a matrix between rows", self._mix, torch.float32, sizes.rank, sizes.rank),
            *(product.as_c() for product in self._products),
        )
        kernels.check("selector_check", self._c)
        self._given: tuple[NamedHead, TokenRows, TokenRows] | None = None
        self._states: States | None = None
        self._room = TreeRoom(0, sizes.hidden, 0)
        self._gates = torch.empty(sizes.heads, sizes.rank)
        self._depths, self._rows = np.empty(_FIRST_ROOM, np.int32), np.empty((_FIRST_ROOM, sizes.rank), np.float32)
        self._tree = CSelectorTree()
        self._reader = CSelectorReader(selector=ctypes.addressof(self._c), tree=ctypes.addressof(self._tree))
        read = kernels.address_of("selector_read_rows")
        self._network = CompiledNetwork(read, ctypes.addressof(self._reader), self, one_pass=True)

    def begin(self, named: NamedHead, states: States, inputs: TokenRows, pairs: TokenRows) -> CompiledNetwork:
        """A tree begins, whose first row is the root's; it is read by compiled code or by `read`.

        Args:
            states: as for `NativeHydra.first`.
            inputs: what the heads begin with, of tokens; it knows the root.
            pairs: what tokens are scored with as the first of a pair and as the second.
        """
        given = self._given
        if given is None or given[0] is not named or given[1] is not inputs or given[2] is not pairs:
            self._give(named, inputs, pairs)
        self._states = states  # C has their address
        heads = self._tree.heads
        heads.features, heads.apart, heads.fused = self._mlp.follow(states)
        self._tree.known = 0
        return self._network

    def read(self, behind: Sequence[int], tokens: Sequence[int]) -> Guessed:
        """Read tokens behind earlier rows, the root behind −1; `pairs` knows them and all that can be guessed."""
        assert self._given is not None, "a tree was begun"
        named, _, pairs = self._given
        count, width = len(tokens), min(self._candidates, len(named.head))
        known = self._tree.known
        if known + count > len(self._depths):
            more = 2 * (known + count) - len(self._depths)
            self._depths, self._rows = np.pad(self._depths, (0, more)), np.pad(self._rows, ((0, more), (0, 0)))
            self._give(named, self._given[1], pairs)
        rows, asked = np.array(behind, np.int32), np.array(tokens, np.int32)
        said, logprobs = np.empty((count, BEST), np.int32), np.empty((count, BEST), np.float32)
        logsumexp = np.empty(count, np.float32)
        about = *(rows.ctypes.data, asked.ctypes.data, width), said.ctypes.data, logprobs.ctypes.data
        self._kernels.selector_read(self._threads, self._reader, count, *about, logsumexp.ctypes.data)
        depths = self._depths[known : known + count].copy()

        def logits() -> torch.Tensor:
            possible, every = len(named.head), self._room.logits
            found = torch.stack([every[depth * possible : (depth + 1) * possible] for depth in depths.tolist()])
            place = {token: at for at, token in enumerate(named.tokens.tolist())}
            for row, total in enumerate(logsumexp.tolist()):
                places = [place[token] for token in said[row, :width].tolist()]
                found[row, places] = torch.from_numpy(logprobs[row, :width]) + total
            return found

        return Guessed(said[:, :width], logprobs[:, :width], named.possible, logsumexp, logits)

    def __enter__(self) -> None:
        self._reader.team = self._kernels.take_team(self._threads)

    def __exit__(self, *error: object) -> None:
        self._kernels.give_team_back()

    def _give(self, named: NamedHead, inputs: TokenRows, pairs: TokenRows) -> None:
        """Tell C where these and the room for results lie. What was read of a tree stays."""
        sizes, tree, width = self._sizes, self._tree, len(named.head)
        if width > self._room.width:
            self._room = TreeRoom(sizes.heads + 1, sizes.hidden, width + SPARE)
        self._given, self._head = (named, inputs, pairs), named.head.as_c
        self._reader.head = ctypes.addressof(self._head)
        follows = tree.heads.features, tree.heads.apart, tree.heads.fused
        tree.heads = self._room.as_c(named, follows, inputs, 0, sizes.heads + 1)
        rows, count, places, known = pairs.as_c
        pointer("rows of pairs", pairs.rows, torch.float32, count, 2 * sizes.rank)
        assert known == tree.heads.tokens_known, "both tables have the vocabulary's tokens"
        tree.room, tree.depths, tree.rows = len(self._depths), self._depths.ctypes.data, self._rows.ctypes.data
        tree.gates = self._gates.data_ptr()
        tree.pairs, tree.pair_rows, tree.pair_of = rows, count, places
