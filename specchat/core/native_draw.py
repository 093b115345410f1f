"""A draw from one row of logits in C: a tenth of what torch takes on a processor."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from specchat.compiled.build import NativeUnavailable, Sources, find_compiler, load
from specchat.compiled.processor import cpu_flags, processor_option
from specchat.core.native_sampling import as_c
from specchat.core.sampling import Counts, Sampling

_FOLDER = Path(__file__).parent / "native"
_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-Wno-psabi", "-shared", "-fPIC")
_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int32


class _CText(ctypes.Structure):
    _fields_ = [("tokens", _POINTER), ("count", ctypes.c_int64), ("often", _POINTER), ("known", ctypes.c_int64)]


_NO_TEXT, _NO_PATH = _CText(), array("q")


class NativeDraw:
    """Draws from rows of one length."""

    def __init__(self, library: ctypes.CDLL, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        # Python's lock is kept during a call, so no two draws work in this at the same time.
        self._room = ctypes.create_string_buffer(library.draw_bytes(vocab_size))
        self._draw = library.draw

    def draw(self, logits: int, sampling: Sampling, counts: Counts, path: Sequence[int], key: int) -> int | None:
        """The token that `law(penalise(…)).draw(…)` gives; None for logits that torch must draw from.

        Args:
            logits: address of (V,) float32, contiguous, on the host.
            key: of the noise; see `Noise.key`.
        """
        about = ctypes.byref(as_c(sampling)), logits, self._vocab_size
        text, behind = _NO_TEXT, _NO_PATH
        if sampling.penalised:
            text, behind = _CText(*counts.addresses()), array("q", path)
        seen = ctypes.byref(text), *behind.buffer_info()
        token = self._draw(*about, *seen, key, self._room)
        return token if token >= 0 else None


@lru_cache(maxsize=2)
def native_draw(vocab_size: int) -> NativeDraw | None:
    """Draws from rows of this length; None where they cannot be compiled."""
    library = draw_library()
    return None if library is None else NativeDraw(library, vocab_size)


@lru_cache(maxsize=1)
def draw_library() -> ctypes.CDLL | None:
    """The compiled C, compiled now if need be; None where it cannot be."""
    try:
        compiler = find_compiler()
        command = (*compiler, processor_option(compiler), *_FLAGS)
        library = load(Sources(_FOLDER, "draw", command, tuple(sorted(cpu_flags())), brief=True)).library
    except NativeUnavailable:
        return None
    library.draw_bytes.restype = ctypes.c_int64
    library.draw_bytes.argtypes = [_INTEGER]
    library.draw.argtypes = [_POINTER, _POINTER, _INTEGER, *(_POINTER,) * 2, _INTEGER, ctypes.c_uint64, _POINTER]
    return library


def takes(logits: Tensor) -> bool:
    """Whether C can read these (V,) logits."""
    return logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.is_contiguous()
