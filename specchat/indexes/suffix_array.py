"""All suffixes of a text in order, so that every run of tokens is found by bisection."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def suffix_array(tokens: NDArray[Any]) -> NDArray[np.uint32]:
    """Where each suffix of the text begins, the suffixes in the order of their tokens; a shorter one comes first.

    Sorts by the first token, then by the first 2, 4, 8, … tokens, until no two suffixes are equal. Takes about 40 bytes
    a token while it works.

    Args:
        tokens: (n,) whole numbers from 0 on, n < 2³¹.

    Reference: Manber and Myers, Suffix Arrays: A New Method for On-Line String Searches (1993). Differs: every step
    sorts all suffixes anew instead of moving them within buckets.
    """
    n = len(tokens)
    assert n < 2**31, "two ranks of so many suffixes fit into 64 bits"
    order, rank = _sorted(tokens.astype(np.int64))
    size = 1
    while n and int(rank[order[-1]]) < n - 1:
        following = np.zeros(n, np.int64)
        following[: n - size] = rank[size:] + 1
        order, rank = _sorted(rank * (n + 1) + following)
        size *= 2
    return order.astype(np.uint32)


def _sorted(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order of the keys, and the rank of each; equal keys share a rank."""
    order = np.argsort(keys, kind="stable")
    steps = np.zeros(len(keys), np.int64)
    ascending = keys[order]
    np.cumsum(ascending[1:] != ascending[:-1], out=steps[1:])
    rank = np.empty_like(steps)
    rank[order] = steps
    return order, rank
