"""The structures that C takes, field by field: a decoder's weights, the rows of one pass, a cache's heads."""

from __future__ import annotations

import ctypes

from specchat.models.cpu_kernels.product import CProduct

KEYS = 32
"""Keys of so many rows lie side by side in the cache; attention.h has the same number."""


class CLayer(ctypes.Structure):
    """`Layer` of decoder.h."""

    _fields_ = [
        ("input_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("post_attention_norm", ctypes.c_void_p),
        ("post_mlp_norm", ctypes.c_void_p),
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
    ]


class CHeadAsked(ctypes.Structure):
    """`HeadAsked` of head.h."""

    _fields_ = [
        ("tokens", ctypes.c_void_p),
        *[(name, ctypes.c_int32) for name in ("named", "apart")],
        *[(name, ctypes.c_void_p) for name in ("highest", "logits", "totals")],
    ]


class CWholePass(ctypes.Structure):
    """`WholePass` of whole_pass.h."""

    _anonymous_ = ("asked",)
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("rows", "missing", "start", "common", "first", "count", "tapped")],
        *[(name, ctypes.c_void_p) for name in ("numbers", "embedding", "tap_of", "taps", "states")],
        ("asked", CHeadAsked),
    ]


class CHeads(ctypes.Structure):
    """`Heads` of cache.h."""

    _fields_ = [("keys", ctypes.c_void_p), ("values", ctypes.c_void_p), ("capacity", ctypes.c_int32)]
