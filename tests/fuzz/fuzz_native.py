"""Tiny models for the native kernels, whole and damaged, under sanitizers where the compiler has them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.fuzz.native_case import run_case
from tests.fuzz.sanitized import do_case

ATTEMPTS = 0
"""None in pytest: there tests/models/test_native_sanitized.py makes them, which says why where it cannot."""


def attempt(seed: int, folder: Path) -> None:
    answer = do_case(str(seed), partial(run_case, seed))
    assert answer == "done" or seed % 4, f"a whole model is {answer}"
