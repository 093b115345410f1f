"""The interface to the compiled kernels: checked addresses of tensors, structures field by field, types of functions.

The C headers declare the same structures and functions.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from specchat.errors import ModelError


def pointer(what: str, tensor: Tensor, dtype: torch.dtype, *sizes: int) -> int:
    """Where a tensor's data lie; valid as long as the tensor lives.

    Args:
        what: what it is, in words, for the error.
        dtype, sizes: what C takes it for.

    Raises:
        ModelError: it is something else, has gaps, or lies on another device.
    """
    if tensor.dtype != dtype or tensor.shape != sizes or tensor.device.type != "cpu" or not tensor.is_contiguous():
        gaps = "" if tensor.is_contiguous() else " with gaps"
        here = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
        raise ModelError(
            f"the native kernels refuse {what}: {tuple(tensor.shape)} {_name(tensor.dtype)}{gaps}{here}, "
            f"not {sizes} {_name(dtype)}"
        )
    return tensor.data_ptr()


def maybe_pointer(what: str, tensor: Tensor | None, dtype: torch.dtype, *sizes: int) -> int | None:
    return None if tensor is None else pointer(what, tensor, dtype, *sizes)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


KEYS = 32
"""Keys of so many rows lie side by side in the cache; attention.h has the same number."""


class CProduct(ctypes.Structure):
    """`Product` of product.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("in", "out", "bits", "minima")],
        ("bytes", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("data", "bias")],
    ]


class CLayer(ctypes.Structure):
    """`Layer` of decoder.h."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("input_norm", "mlp_norm", "q_norm", "k_norm")],
        *[(name, ctypes.c_void_p) for name in ("post_attention_norm", "post_mlp_norm")],
        ("kind", ctypes.c_int32),
        ("qkv", CProduct * 3),
        ("o", CProduct),
        ("gate_up", CProduct * 2),
        ("down", CProduct),
    ]


class CDecoder(ctypes.Structure):
    """`Decoder` of decoder.h."""

    _fields_ = [
        *[(n, ctypes.c_int32) for n in ("layers", "hidden", "heads", "kv_heads", "head_dim", "inter", "vocab_size")],
        *[(n, ctypes.c_int32) for n in ("kinds", "gelu")],
        ("epsilon", ctypes.c_float),
        ("layer", ctypes.POINTER(CLayer)),
        ("norm", ctypes.c_void_p),
        ("head", CProduct),
    ]


class CAttentionKind(ctypes.Structure):
    """`AttentionKind` of decoder.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("common", "positions")],
        *[(name, ctypes.c_void_p) for name in ("rotations", "mask")],
    ]


KINDS = 4
"""Kinds of attention there is room for; decoder.h has the same number."""


class CRows(ctypes.Structure):
    """`Rows` of decoder.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("rows", "end", "capacity")],
        *[(name, ctypes.c_void_p) for name in ("hidden", "positions", "places", "keys", "values")],
        ("kind", CAttentionKind * KINDS),
        *[(name, ctypes.c_void_p) for name in ("place_of", "mlp")],
        *[(name, ctypes.c_int32) for name in ("kept", "adapters")],
        *[(name, ctypes.c_void_p) for name in ("low_rank", "adapter_of")],
        ("tapped", ctypes.c_int32),
        *[(name, ctypes.c_void_p) for name in ("tap_of", "taps")],
        *[(name, ctypes.c_int32) for name in ("chunks", "chunk_rows")],
        ("chunk_scores", ctypes.c_void_p),
        ("texts", ctypes.c_int32),
        *[(name, ctypes.c_void_p) for name in ("text", "text_of")],
    ]


class CHeadAsked(ctypes.Structure):
    """`HeadAsked` of head.h."""

    _fields_ = [
        ("tokens", ctypes.c_void_p),
        *[(name, ctypes.c_int32) for name in ("named", "apart")],
        *[(name, ctypes.c_void_p) for name in ("highest", "logits", "logsumexp")],
    ]


class CWholePass(ctypes.Structure):
    """`WholePass` of whole_pass.h."""

    _anonymous_ = ("asked",)
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("rows", "missing", "start", "common", "first", "count", "tapped")],
        ("scale", ctypes.c_float),
        *[(name, ctypes.c_void_p) for name in ("numbers", "embedding", "tap_of", "taps", "states")],
        ("asked", CHeadAsked),
    ]


class CHeads(ctypes.Structure):
    """`Heads` of cache.h."""

    _fields_ = [("keys", ctypes.c_void_p), ("values", ctypes.c_void_p), ("capacity", ctypes.c_int32)]


_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int

LAYER_READY = ctypes.CFUNCTYPE(_INTEGER, _INTEGER)
"""`LayerReady` of whole_pass.h."""


def declare_functions(library: ctypes.CDLL) -> None:
    checks = ("decoder", "hydra", "selector", "linear", "head_alone")
    for name in (*(f"{each}_check" for each in checks), "finite_rows", "floor_operations", "team_free"):
        getattr(library, name).argtypes = [_POINTER]
    library.team_new.restype = _POINTER
    library.team_new.argtypes = [_INTEGER]
    library.decoder_layers.argtypes = [_POINTER, _POINTER, _POINTER, _INTEGER, _INTEGER]
    library.decoder_read.argtypes = [*(_POINTER,) * 4]
    library.decoder_read_together.argtypes = [*(_POINTER,) * 4, _INTEGER, _POINTER]
    library.decoder_bytes.restype = ctypes.c_size_t
    library.decoder_bytes.argtypes = [_INTEGER, _POINTER, _INTEGER, _INTEGER]
    library.decoder_head.argtypes = [*(_POINTER,) * 3, _INTEGER, _POINTER]
    library.log_probabilities.argtypes = [*(_POINTER,) * 3, *(_INTEGER,) * 4, *(_POINTER,) * 3]
    library.hydra_read.argtypes = [*(_POINTER,) * 4, _INTEGER, _POINTER]
    library.selector_read_rows.argtypes = [_POINTER, _INTEGER, *(_POINTER,) * 2, _INTEGER, *(_POINTER,) * 3]
    library.cache_move.argtypes = [_POINTER, _POINTER, _INTEGER, _INTEGER, _INTEGER, _POINTER, _INTEGER]
    library.cache_copy.argtypes = [_POINTER, _POINTER, _INTEGER, _INTEGER, _POINTER, _INTEGER, _INTEGER]
    library.linear.argtypes = [*(_POINTER,) * 3, _INTEGER, _POINTER]
    library.linear_of_stored.argtypes = [*(_POINTER,) * 2, ctypes.c_float, *(_POINTER,) * 2]
    library.gather_outputs.argtypes = [*(_POINTER,) * 2, _INTEGER, _POINTER, ctypes.c_int64, _INTEGER]
    library.team_time.restype = None
    library.team_time.argtypes = [_POINTER, ctypes.c_bool]
    library.team_spent.argtypes = [_POINTER, _POINTER]
    library.floor_bytes.restype = library.floor_operations.restype = ctypes.c_double
    library.floor_bytes.argtypes = [_POINTER, _POINTER, ctypes.c_int64]
    library.recurrent_convolve.argtypes = library.recurrent_scan.argtypes = [_POINTER, _POINTER]
    library.recurrent_follow.argtypes = [_POINTER, _POINTER]
    library.packs.argtypes = [_INTEGER]
    library.pack.argtypes = [_POINTER, _INTEGER, _POINTER, ctypes.c_int64]
    library.unpack_rows.argtypes = [_POINTER, _POINTER]
    library.refusal.restype = ctypes.c_char_p
