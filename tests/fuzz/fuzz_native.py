"""Tiny models for the native kernels, whole and damaged, under sanitizers where the compiler has them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from specchat.compiled.build import NativeUnavailable
from tests.fuzz.native_case import run_case
from tests.fuzz.sanitized import Sanitized, runtime

ATTEMPTS = 0
"""None in pytest: there tests/models/test_native_sanitized.py makes them, which says why where it cannot."""


def attempt(seed: int, folder: Path) -> None:
    try:
        runtime()
    except NativeUnavailable:
        run_case(seed)
        return
    answer = _process().do(str(seed))
    assert answer == "done" or seed % 4, f"a whole model is {answer}"


@lru_cache
def _process() -> Sanitized:
    return Sanitized()
