"""The sequential MLP's steps through the compiled kernels, in 8 bits: one call for a level of a tree."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specchat.core.trained_network import Guessed
from specchat.models.native.kernels import BEST, Kernels
from specchat.models.native.linear import NativeHead
from specchat.models.native.product import CProduct
from specchat.models.native.tensor_pointers import pointer

_FIRST_ROOM = 64


class CHydra(ctypes.Structure):
    """`Hydra` of hydra.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("hidden", "inner", "taps")],
        ("epsilon", ctypes.c_float),
        ("mlp_norm", ctypes.c_void_p),
        *[(name, CProduct) for name in ("fuse", "back", "gate_up", "down")],
    ]


class CHydraStep(ctypes.Structure):
    """`HydraStep` of hydra.h."""

    _fields_ = [
        ("rows", ctypes.c_int32),
        *[(name, ctypes.c_void_p) for name in ("features", "fused", "parents", "states")],
        ("known", ctypes.c_int32),
        ("tokens", ctypes.c_void_p),
        ("token_rows", ctypes.c_int32),
        *[(name, ctypes.c_void_p) for name in ("token_of", "names", "logits", "best", "logprobs")],
    ]


class _Room:
    """Room for what is said of a tree's nodes: states (n, d), the likeliest tokens and their log-probabilities."""

    def __init__(self, nodes: int, hidden: int) -> None:
        self.nodes = nodes
        self.states = torch.empty(nodes, hidden)
        self.best = torch.empty(nodes, BEST, dtype=torch.int32)
        self.logprobs = torch.empty(nodes, BEST)
        self.tokens_read, self.logprobs_read = self.best.numpy(), self.logprobs.numpy()
        self.at = self.states.data_ptr(), self.best.data_ptr(), self.logprobs.data_ptr()


@dataclass(frozen=True)
class Named:
    """A head, and the token that each of its rows stands for: (R,) int64."""

    head: NativeHead
    tokens: Tensor


class NativeHydra:
    """Steps of one tree after another. States of the tree's nodes are kept until the next begins."""

    def __init__(self, kernels: Kernels, network: Any) -> None:
        """No tree yet; `network` is a `models.learned.hydra.Hydra` whose products are `NativeLinear`."""
        sizes = network.sizes
        self._kernels, self._hidden, self._taps = kernels, sizes.hidden, len(sizes.taps)
        self._norm = network.mlp_norm.detach().float().contiguous()
        self._products = network.fuse.product, network.back.product, network.gate_up.product, network.down.product
        self._c = CHydra(
            *(sizes.hidden, sizes.inner, self._taps, sizes.epsilon),
            pointer("a norm", self._norm, torch.float32, sizes.hidden),
            *(product.as_c() for product in self._products),
        )
        kernels.check_hydra(self._c)
        self._room = _Room(_FIRST_ROOM, sizes.hidden)
        self._known = 0

    def begin(self) -> None:
        """Forget the last tree; what was said of it may be written over."""
        self._known = 0

    def first(self, named: Named, inputs: Tensor, tokens: Tensor, token: int) -> Guessed:
        """What follows the root.

        Args:
            inputs: (taps, d) the target's states at the token before the root, or (d,) what was made of them.
            tokens: (n, d) what steps take of tokens.
            token: the root's row in it.
        """
        raw = inputs.dim() == 2
        given = pointer("states", inputs, torch.float32, *(self._taps,) * raw, self._hidden)
        return self._step(named, 1, (given if raw else None, None if raw else given, None), tokens, [token])

    def after(self, named: Named, parents: Sequence[int], tokens: Tensor, each: Sequence[int]) -> Guessed:
        """What follows tokens behind other states, which are counted in the order they were made; `each` by its row."""
        return self._step(named, len(parents), (None, None, array("i", parents)), tokens, each)

    def _step(
        self,
        named: Named,
        rows: int,
        follows: tuple[int | None, int | None, array[int] | None],
        tokens: Tensor,
        each: Sequence[int],
    ) -> Guessed:
        features, fused, parents = follows
        first, end = self._known, self._known + rows
        if end > self._room.nodes:
            self._grow(end)
        room, token_of, possible = self._room, array("i", each), named.tokens
        logits = torch.empty(rows, len(named.head))
        states_at, best_at, logprobs_at = room.at
        step = CHydraStep(
            *(rows, features, fused, None if parents is None else parents.buffer_info()[0], states_at, first),
            *(pointer("tokens", tokens, torch.float32, tokens.shape[0], self._hidden), tokens.shape[0]),
            *(token_of.buffer_info()[0], pointer("the tokens of a head", possible, torch.int64, len(named.head))),
            *(logits.data_ptr(), best_at + 4 * BEST * first, logprobs_at + 4 * BEST * first),
        )
        self._kernels.hydra_step(1, named.head.as_c, self._c, step)
        self._known = end
        said = slice(first, end), slice(0, len(named.head))
        return Guessed(room.tokens_read[said], room.logprobs_read[said], possible.numpy(), logits)

    def _grow(self, nodes: int) -> None:
        room = _Room(max(nodes, 2 * self._room.nodes), self._hidden)
        room.states[: self._known] = self._room.states[: self._known]
        self._room = room
