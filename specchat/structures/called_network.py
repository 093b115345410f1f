"""A network that Python runs, as compiled code reads a tree with it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakMethod

import numpy as np
import torch
from torch import Tensor

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.tree import ROOT, TokenTree
from specchat.structures.guess_search import MOST_WIDTH

_ADDRESS, _INT = ctypes.c_void_p, ctypes.c_int32
READ_ROWS = ctypes.PYFUNCTYPE(_INT, _ADDRESS, _INT, _ADDRESS, _ADDRESS, _INT, _ADDRESS, _ADDRESS, _ADDRESS)
_BYTES = 4  # of a number
DONE, FAILED = 0, 5


class Named(NamedTuple):
    """What a network says after R rows, on the host.

    Args:
        tokens: (R, MOST_WIDTH) int32, the likeliest first; −1 behind the last.
        logits: (R, MOST_WIDTH) float32, theirs; −inf behind the last.
        totals: (R,) float32, what is to be taken from logits to make log-probabilities of them.
    """

    tokens: Tensor
    logits: Tensor
    totals: Tensor


Read = Callable[[Sequence[int], Sequence[int], int], Named]
"""A method that reads tokens behind earlier rows, by their numbers in the order in which they were read; the root is
behind row −1. The last argument is how many tokens will be looked at after each."""


def nothing_named(rows: int) -> Named:
    """What a network says where it says nothing; to be filled in."""
    # Made by numpy: after a pass torch's own code has left the caches.
    tokens = np.full((rows, MOST_WIDTH), -1, dtype=np.int32)
    logits = np.full((rows, MOST_WIDTH), -np.inf, dtype=np.float32)
    return Named(*map(torch.from_numpy, (tokens, logits, np.zeros(rows, dtype=np.float32))))


def grow_rows(tree: TokenTree, behind: Sequence[int], tokens: Sequence[int]) -> Sequence[int]:
    """Put rows that compiled code reads into a tree of them, and return their nodes: a row's number is its node's."""
    if behind[0] < 0:
        return [ROOT, *tree.extend(behind[1:], tokens[1:])]
    return tree.extend(behind, tokens)


class CalledNetwork:
    """`ReadRows` of structures/native/guess_search.h in Python.

    Attributes:
        address: of the function that compiled code calls.
        network: what compiled code is told of it.
    """

    def __init__(self, read: Read) -> None:
        self._read = WeakMethod(read)  # whose drafter holds this
        self._error: BaseException | None = None
        self._callback = READ_ROWS(self._answer)
        address = ctypes.cast(self._callback, _ADDRESS).value
        assert address is not None, "a function has an address"
        self.address = address
        self.network = CompiledNetwork(address, 0, self, logits=True)

    def __enter__(self) -> None:
        self._error = None

    def __exit__(self, *error: object) -> None:
        """Raise what compiled code could not hand on."""
        if self._error is not None:
            raise self._error

    def _answer(
        self, _: int | None, count: int, behind: int, tokens: int, width: int, said: int, logits: int, totals: int
    ) -> int:
        read, size = self._read(), _BYTES * count
        assert read is not None, "a drafter reads as long as it is there"
        try:
            above, following = (array("i", ctypes.string_at(rows, size)) for rows in (behind, tokens))
            named = read(above, following, width)
        except BaseException as error:
            self._error = error
            return FAILED
        ctypes.memmove(said, named.tokens.data_ptr(), size * MOST_WIDTH)
        ctypes.memmove(logits, named.logits.data_ptr(), size * MOST_WIDTH)
        ctypes.memmove(totals, named.totals.data_ptr(), size)
        return DONE


def as_named(tokens: Tensor | None, logits: Tensor | None, totals: Tensor | None) -> Named | None:
    """These (R, K), (R, K) and (R,), where compiled code can take them as they are."""
    if tokens is None or logits is None or totals is None or tokens.dtype is not torch.int32 or not tokens.is_cpu:
        return None
    if tokens.shape[1] != MOST_WIDTH or logits.dtype is not torch.float32 or totals.dtype is not torch.float32:
        return None
    return Named(tokens, logits, totals) if tokens.is_contiguous() and logits.is_contiguous() else None
