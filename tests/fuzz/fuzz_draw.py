"""Draws in C from odd rows of logits, under sanitizers where the compiler has them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from specchat.compiled.build import NativeUnavailable
from tests.fuzz.draw_case import run_draw
from tests.fuzz.sanitized import Sanitized, runtime

ATTEMPTS = 0
"""None in pytest: there tests/models/test_native_sanitized.py makes them under sanitizers."""


def attempt(seed: int, folder: Path) -> None:
    try:
        runtime()
    except NativeUnavailable:
        run_draw(seed)
        return
    assert _process().do(f"draw {seed}") == "done", "every row is drawn from, or left to torch"


@lru_cache
def _process() -> Sanitized:
    return Sanitized()
