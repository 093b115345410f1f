"""Draws in C from odd rows of logits, under sanitizers where the compiler has them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.fuzz.draw_case import run_draw
from tests.fuzz.sanitized import do_case

ATTEMPTS = 0
"""None in pytest: there tests/models/test_native_sanitized.py makes them under sanitizers."""


def attempt(seed: int, folder: Path) -> None:
    assert do_case(f"draw {seed}", partial(run_draw, seed)) == "done", "every row is drawn from, or left to torch"
