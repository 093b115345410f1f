"""Trees grown in C from suffix trees and networks that say anything, under sanitizers where the compiler has them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from specchat.compiled.build import NativeUnavailable
from tests.fuzz.guess_case import run_guesses
from tests.fuzz.sanitized import Sanitized, runtime

ATTEMPTS = 0
"""None in pytest: there tests/models/test_native_sanitized.py makes them under sanitizers."""


def attempt(seed: int, folder: Path) -> None:
    try:
        runtime()
    except NativeUnavailable:
        run_guesses(seed)
        return
    assert _process().do(f"guesses {seed}") == "done", "every tree is grown"


@lru_cache
def _process() -> Sanitized:
    return Sanitized()
