"""The sequential MLP's steps through the compiled kernels, in 8 bits: one call for a level of a tree."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specchat.models.native.kernels import HeadRoom, Kernels
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
        *[(name, ctypes.c_void_p) for name in ("token_of", "logits", "best", "highest", "totals")],
    ]


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
        self._states = torch.zeros(_FIRST_ROOM, sizes.hidden)
        self._known = 0

    def begin(self) -> None:
        """Forget the states of the last tree."""
        self._known = 0

    def first(self, head: NativeHead, inputs: Tensor, tokens: Tensor, token: int) -> HeadRoom:
        """The root's state.

        Args:
            inputs: (taps, d) the target's states at the token before the root, or (d,) what was made of them.
            tokens: (n, d) what steps take of tokens.
            token: the root's row in it.
        """
        raw = inputs.dim() == 2
        given = pointer("states", inputs, torch.float32, *(self._taps,) * raw, self._hidden)
        return self._step(head, 1, (given if raw else None, None if raw else given, None), tokens, [token])

    def after(self, head: NativeHead, parents: Sequence[int], tokens: Tensor, each: Sequence[int]) -> HeadRoom:
        """States below others, which are counted in the order they were made; `each` token by its row."""
        return self._step(head, len(parents), (None, None, array("i", parents)), tokens, each)

    def _step(
        self,
        head: NativeHead,
        rows: int,
        follows: tuple[int | None, int | None, array[int] | None],
        tokens: Tensor,
        each: Sequence[int],
    ) -> HeadRoom:
        features, fused, parents = follows
        self._make_room(self._known + rows)
        said, token_of = head.room(rows), array("i", each)
        step = CHydraStep(
            *(rows, features, fused, None if parents is None else parents.buffer_info()[0]),
            *(self._states.data_ptr(), self._known),
            *(pointer("tokens", tokens, torch.float32, len(tokens), self._hidden), len(tokens)),
            *(token_of.buffer_info()[0], *said.addresses),
        )
        self._kernels.hydra_step(1, head.as_c, self._c, step)
        self._known += rows
        return said

    def _make_room(self, rows: int) -> None:
        if rows > len(self._states):
            room = torch.zeros(max(rows, 2 * len(self._states)), self._hidden)
            room[: self._known] = self._states[: self._known]
            self._states = room
