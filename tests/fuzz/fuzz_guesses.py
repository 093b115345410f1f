"""Trees grown in C from suffix trees and networks that say anything, under sanitizers where the compiler has them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.fuzz.guess_case import run_guesses
from tests.fuzz.sanitized import do_case

ATTEMPTS = 0
"""None in pytest: there tests/models/test_native_sanitized.py makes them under sanitizers."""


def attempt(seed: int, folder: Path) -> None:
    assert do_case(f"guesses {seed}", partial(run_guesses, seed)) == "done", "every tree is grown"
