"""Prompts of known benchmarks are kept out of training: they are known by hashes of their word sequences."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

HASHES = Path(__file__).with_name("bench_prompts.npy")
"""Ascending uint32 hashes of the questions of specchat's own bench, MT-Bench and HumanEval; tests/bench_hashes.py
writes it. The texts themselves are not here."""

WORDS = 8
"""This many words in a row are taken for a quotation. A shorter prompt counts as a whole."""


def overlaps_benchmark(text: str) -> bool:
    """Whether a prompt shares eight words in a row with a question of a known benchmark, or is one."""
    known = _known()
    hashes = np.fromiter(word_hashes(text), dtype=np.uint32)
    places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
    return bool((known[places] == hashes).any())


def word_hashes(text: str) -> Iterable[int]:
    """A 32-bit hash of every eight words in a row; case, spaces and punctuation do not count."""
    words = re.findall(r"\w+", text.lower())
    for first in range(max(1, len(words) - WORDS + 1)):
        some = " ".join(words[first : first + WORDS])
        yield int.from_bytes(hashlib.blake2b(some.encode(), digest_size=4).digest(), "little")


@cache
def _known() -> np.ndarray:
    hashes: np.ndarray = np.load(HASHES, allow_pickle=False)
    return hashes
