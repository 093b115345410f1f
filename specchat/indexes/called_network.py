"""A network that Python runs, as compiled code reads a tree with it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from ctypes import memmove, string_at
from typing import Any, NamedTuple
from weakref import WeakMethod

import numpy as np

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.reading import HeadOutput
from specchat.core.tree import ROOT, TokenTree
from specchat.indexes.guess_search import MOST_WIDTH

_ADDRESS, _INT = ctypes.c_void_p, ctypes.c_int32
READ_ROWS = ctypes.PYFUNCTYPE(_INT, _ADDRESS, _INT, _ADDRESS, _ADDRESS, _INT, _ADDRESS, _ADDRESS, _ADDRESS)
_BYTES = 4  # of a number
DONE, FAILED = 0, 5

Tokens = np.ndarray[Any, np.dtype[np.int32 | np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32 | np.float64]]


class Named(NamedTuple):
    """Where in memory lies what a network says after R rows.

    Args:
        tokens: address of (R, MOST_WIDTH) int32, the likeliest first; −1 behind the last.
        logits: of (R, MOST_WIDTH) float32, theirs; −inf behind the last.
        logsumexp: of (R,) float32, what is to be taken from logits to make log-probabilities of them.
        memory: what keeps them there.
    """

    tokens: int
    logits: int
    logsumexp: int
    memory: object


Read = Callable[[Sequence[int], Sequence[int], int], Named]
"""A method that reads tokens behind earlier rows, by their numbers in the order in which they were read; the root is
behind row −1. The last argument is how many tokens will be looked at after each."""


def named_of(tokens: Tokens, logits: Floats, logsumexp: Floats) -> Named:
    """These (R, C), (R, C) and (R,), of up to MOST_WIDTH tokens, on the host."""
    rows, count = tokens.shape
    # Made by numpy: after a pass torch's own code has left the caches.
    every = np.full((rows, MOST_WIDTH), -1, dtype=np.int32)
    theirs = np.full((rows, MOST_WIDTH), -np.inf, dtype=np.float32)
    every[:, :count], theirs[:, :count], sums = tokens, logits, logsumexp.astype(np.float32)
    return Named(every.ctypes.data, theirs.ctypes.data, sums.ctypes.data, (every, theirs, sums))


def nothing_named(rows: int) -> Named:
    """The output of a network that names no token."""
    return named_of(np.empty((rows, 0), dtype=np.int32), np.empty((rows, 0)), np.zeros(rows))


def grow_rows(tree: TokenTree, behind: Sequence[int], tokens: Sequence[int]) -> Sequence[int]:
    """Put rows that compiled code reads into a tree of them, and return their nodes: a row's number is its node's."""
    if behind[0] < 0:
        return [ROOT, *tree.extend(behind[1:], tokens[1:])]
    return tree.extend(behind, tokens)


class CalledNetwork:
    """`ReadRows` of indexes/native/growing_tree.h in Python.

    Attributes:
        address: of the function that compiled code calls.
        network: what compiled code is told of it.
    """

    def __init__(self, read: Read, one_pass: bool = False) -> None:
        self._read = WeakMethod(read)  # whose drafter holds this
        self._error: BaseException | None = None
        self._callback = READ_ROWS(self._answer)
        address = ctypes.cast(self._callback, _ADDRESS).value
        assert address is not None, "a function has an address"
        self.address = address
        self.network = CompiledNetwork(address, 0, self, logits=True, one_pass=one_pass)

    def __enter__(self) -> None:
        self._error = None

    def __exit__(self, *error: object) -> None:
        """Raise what compiled code could not hand on."""
        if self._error is not None:
            raise self._error

    def _answer(
        self, _: int | None, count: int, behind: int, tokens: int, width: int, said: int, logits: int, logsumexp: int
    ) -> int:
        read, size = self._read(), _BYTES * count
        assert read is not None, "a drafter reads as long as it is there"
        try:
            named = read(array("i", string_at(behind, size)), array("i", string_at(tokens, size)), width)
        except BaseException as error:
            self._error = error
            return FAILED
        memmove(said, named.tokens, size * MOST_WIDTH)
        memmove(logits, named.logits, size * MOST_WIDTH)
        memmove(logsumexp, named.logsumexp, size)
        return DONE


def as_named(output: HeadOutput, vocab_size: int) -> Named | None:
    """What a head names, if compiled code can take it as it is: as much, and no rows of padding beyond `vocab_size`."""
    named = output.in_memory
    if named is None or named.named != MOST_WIDTH or named.width > vocab_size:
        return None
    return Named(named.likeliest, named.highest, named.logsumexp, output)
