"""How a chat samples, as C reads it."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache

from specchat.core.sampling import Sampling


class CSampling(ctypes.Structure):
    """`Sampling` of sampling.h."""

    _fields_ = [
        *[(name, ctypes.c_double) for name in ("temperature", "top_p", "log_min_p")],
        *[(name, ctypes.c_double) for name in ("repetition", "presence", "frequency")],
        *[(name, ctypes.c_int32) for name in ("top_k", "penalised")],
    ]


@lru_cache(maxsize=8)
def as_c(sampling: Sampling) -> CSampling:
    """The same in C. It is kept for the next call: not to be changed."""
    return CSampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        log_min_p=math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf,
        repetition=sampling.repetition_penalty,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        top_k=sampling.top_k,
        penalised=sampling.penalised,
    )
