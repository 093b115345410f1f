"""Convolutions and scans of recurrent layers over a token tree through the compiled kernels, in float32."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.record import record
from specchat.models.cpu_kernels.c_interface import maybe_pointer, pointer
from specchat.models.cpu_kernels.kernels import Kernels

MOST_KERNEL = 16
"""Inputs that a convolution looks at, at most; recurrence.h has the same number."""

_FLOAT, _THREADS = torch.float32, 1


class CBelow(ctypes.Structure):
    """`Below` of recurrence.h."""

    _fields_ = [("before", ctypes.c_int32), ("rows", ctypes.c_int32), ("above", ctypes.c_void_p)]


class CConvolution(ctypes.Structure):
    """`Convolution` of recurrence.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("channels", "kernel", "silu")],
        ("below", CBelow),
        *[(name, ctypes.c_void_p) for name in ("last", "inputs", "weight", "bias", "out")],
    ]


class CStateSizes(ctypes.Structure):
    """`StateSizes` of recurrence.h."""

    _fields_ = [(name, ctypes.c_int32) for name in ("heads", "key_heads", "keys", "values")]


class CScan(ctypes.Structure):
    """`Scan` of recurrence.h."""

    _fields_ = [
        ("sizes", CStateSizes),
        *[(name, ctypes.c_int32) for name in ("delta", "normalise")],
        ("scale", ctypes.c_float),
        ("below", CBelow),
        *[(name, ctypes.c_void_p) for name in ("state", "q", "k", "x", "decay", "rate", "skip")],
        *[(name, ctypes.c_void_p) for name in ("kept_keys", "kept_values", "kept_totals", "out", "queries", "read")],
    ]


class CFollowing(ctypes.Structure):
    """`Following` of recurrence.h."""

    _fields_ = [
        ("sizes", CStateSizes),
        *[(name, ctypes.c_int32) for name in ("kept", "length")],
        *[(name, ctypes.c_void_p) for name in ("path", "state", "kept_keys", "kept_values", "kept_totals", "out")],
    ]


@record
class ScanInputs:
    """The inputs of a recurrent layer's scan for n rows, float32; recurrence.h says what each is.

    Args:
        q, k: (n, key heads, keys).
        x: (n, heads, values).
        decay: (n, heads) logarithms, none above 0.
        rate: (n, heads).
        delta: whether it is a gated delta net; else Mamba-2.
        normalise: whether q and k are brought to length 1.
        scale: of q.
        skip: (heads,) what of x is added to the output.
    """

    q: Tensor
    k: Tensor
    x: Tensor
    decay: Tensor
    rate: Tensor
    delta: bool
    normalise: bool = False
    scale: float = 1.0
    skip: Tensor | None = None


Kept = tuple[Tensor, Tensor, Tensor]
"""(m, key heads, keys) float32, (m, heads, values) float32 and (m, heads) float64 k, u and G of rows of a tree."""


class CompiledRecurrence:
    """The recurrence in C, on the thread that asks: no second team of threads competes with PyTorch's for the cores."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def convolve(
        self,
        above: array[int],
        new: int,
        last: Tensor | None,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        silu: bool,
    ) -> Tensor:
        """(new, channels) float32: each new row of itself and its own ancestors, and behind these of the text's end.

        Args:
            above: of each row of the tree that was read, the new ones last, which it follows; −1: the text.
            last: (kernel − 1, channels) of the text; None: zeros.
            inputs: (len(above), channels).
            weight: (channels, kernel).
            bias: (channels,).
        """
        channels, kernel = weight.shape
        last, bias = (None if of is None else of.to(_FLOAT) for of in (last, bias))
        inputs, weight = inputs.to(_FLOAT), weight.to(_FLOAT)
        out = torch.empty(new, channels)
        asked = CConvolution(
            *(channels, kernel, silu, _below(above, new)),
            maybe_pointer("the text's last inputs", last, _FLOAT, kernel - 1, channels),
            pointer("inputs", inputs, _FLOAT, len(above), channels),
            pointer("a convolution", weight, _FLOAT, channels, kernel),
            maybe_pointer("its bias", bias, _FLOAT, channels),
            out.data_ptr(),
        )
        self._kernels.recurrent("recurrent_convolve", _THREADS, asked)
        return out

    def scan(self, above: array[int], state: Tensor | None, kept: Kept, inputs: ScanInputs) -> Tensor:
        """(new, heads, values) what every new row reads after it was added.

        Args:
            above: as `convolve` takes it.
            state: (heads, keys, values) after the text; None: zeros.
            kept: of all rows; those of the new ones, which are the last, are written.
        """
        (new, key_heads, keys), (_, heads, values) = inputs.q.shape, inputs.x.shape
        out, queries = torch.empty(new, heads, values), torch.empty(new, key_heads, keys)
        read = torch.empty(_THREADS, 2, new, values)
        asked = CScan(
            *((heads, key_heads, keys, values), inputs.delta, inputs.normalise, inputs.scale, _below(above, new)),
            maybe_pointer("a state", state, _FLOAT, heads, keys, values),
            pointer("q", inputs.q, _FLOAT, new, key_heads, keys),
            pointer("k", inputs.k, _FLOAT, new, key_heads, keys),
            pointer("x", inputs.x, _FLOAT, new, heads, values),
            pointer("decays", inputs.decay, _FLOAT, new, heads),
            pointer("rates", inputs.rate, _FLOAT, new, heads),
            maybe_pointer("what is added", inputs.skip, _FLOAT, heads),
            *_addresses(kept, len(above), key_heads),
            *(out.data_ptr(), queries.data_ptr(), read.data_ptr()),
        )
        self._kernels.recurrent("recurrent_scan", _THREADS, asked)
        return out

    def follow(self, path: Sequence[int], state: Tensor | None, kept: Kept) -> Tensor:
        """(heads, keys, values) the state after these rows of a tree, each below the one before it; none is no path."""
        rows, (count, key_heads, keys), (_, heads, values) = array("i", path), kept[0].shape, kept[1].shape
        out = torch.empty(heads, keys, values)
        asked = CFollowing(
            *((heads, key_heads, keys, values), count, len(rows), rows.buffer_info()[0]),
            maybe_pointer("a state", state, _FLOAT, heads, keys, values),
            *_addresses(kept, count, key_heads),
            out.data_ptr(),
        )
        self._kernels.recurrent("recurrent_follow", _THREADS, asked)
        return out


def _below(above: array[int], new: int) -> CBelow:
    assert above.itemsize == 4, "32 bits each"
    return CBelow(len(above) - new, new, above.buffer_info()[0])


def _addresses(kept: Kept, rows: int, key_heads: int) -> tuple[int, int, int]:
    (keys, values, totals), heads = kept, kept[1].shape[1]
    return (
        pointer("kept keys", keys, _FLOAT, rows, key_heads, keys.shape[2]),
        pointer("kept values", values, _FLOAT, rows, heads, values.shape[2]),
        pointer("kept totals", totals, torch.float64, rows, heads),
    )
