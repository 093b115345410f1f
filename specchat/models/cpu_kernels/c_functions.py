"""What the functions of the compiled kernels take and return; the C headers declare the same."""

from __future__ import annotations

import ctypes

_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int


def declare_functions(library: ctypes.CDLL) -> None:
    """Tell ctypes the types of every function that Python calls."""
    library.team_new.restype = _POINTER
    library.team_new.argtypes = [_INTEGER]
    library.team_free.argtypes = [_POINTER]
    library.decoder_check.argtypes = [_POINTER]
    library.decoder_layers.argtypes = [_POINTER, _POINTER, _POINTER, _INTEGER, _INTEGER]
    library.decoder_read.argtypes = [*(_POINTER,) * 4]
    library.decoder_bytes.restype = ctypes.c_size_t
    library.decoder_bytes.argtypes = [_INTEGER, _POINTER, _INTEGER, _INTEGER]
    library.decoder_head.argtypes = [*(_POINTER,) * 3, _INTEGER, _POINTER]
    library.log_probabilities.argtypes = [*(_POINTER,) * 3, *(_INTEGER,) * 4, *(_POINTER,) * 3]
    library.hydra_check.argtypes = [_POINTER]
    library.hydra_read.argtypes = [*(_POINTER,) * 4, _INTEGER, _POINTER]
    library.cache_move.argtypes = [_POINTER, _POINTER, _INTEGER, _INTEGER, _INTEGER, _POINTER, _INTEGER]
    library.cache_copy.argtypes = [_POINTER, _POINTER, _INTEGER, _INTEGER, _POINTER, _INTEGER, _INTEGER]
    library.linear_check.argtypes = library.head_alone_check.argtypes = [_POINTER]
    library.linear.argtypes = [*(_POINTER,) * 3, _INTEGER, _POINTER]
    library.linear_of_stored.argtypes = [*(_POINTER,) * 2, ctypes.c_float, *(_POINTER,) * 2]
    library.gather_outputs.argtypes = [*(_POINTER,) * 2, _INTEGER, _POINTER, ctypes.c_int64, _INTEGER]
    library.team_time.restype = None
    library.team_time.argtypes = [_POINTER, ctypes.c_bool]
    library.team_spent.argtypes = [_POINTER, _POINTER]
    library.floor_bytes.restype = library.floor_operations.restype = ctypes.c_double
    library.floor_bytes.argtypes = [_POINTER, _POINTER, ctypes.c_int64]
    library.floor_operations.argtypes = [_POINTER]
    library.packs.argtypes = [_INTEGER]
    library.pack.argtypes = [_POINTER, _INTEGER, _POINTER, ctypes.c_int64]
    library.finite_rows.argtypes = [_POINTER]
    library.unpack_rows.argtypes = [_POINTER, _POINTER]
    library.refusal.restype = ctypes.c_char_p
