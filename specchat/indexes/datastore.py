"""Texts as tokens with their suffix array, mapped from a file: how often each run occurs and what followed it.

Or what followed the nearest of the hidden states that were met.
"""

from __future__ import annotations

import bisect
import itertools
import mmap
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from specchat.config.datastore_files import HEADER_BYTES, MOST_NAMES_BYTES, SUFFIX_BYTES, DatastoreHeader, read_header
from specchat.config.file_reading import UNREADABLE, open_regular
from specchat.errors import StoreError


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


_SAMPLE = 256
"""What follows a run that occurs more often is counted at so many places, evenly spread over the sorted suffixes."""

_FEW = 48
"""Up to so many places are looked at one by one."""

_BLOCK = 1 << 20
"""How many numbers are checked at a time."""

_MOST_NAME = 200
"""Longer names of files are cut."""


class Match(NamedTuple):
    """A run of tokens that occurs: its length, and the rows of the suffix array where it begins a suffix."""

    length: int
    first: int
    end: int

    @property
    def occurrences(self) -> int:
        return self.end - self.first


class StoredText(NamedTuple):
    """Where a token stands in a datastore: the file that its text is from (empty where that is not known), the token's
    index in the datastore, and some tokens before it in the same text."""

    name: str
    place: int
    before: tuple[int, ...]


class Datastore:
    """Texts in a file, found by their suffix array. Nothing but the pages that are looked at is in memory.

    Tokens lie in the file with the high byte first, so that comparing bytes compares runs of tokens.

    Raises:
        StoreError: the file cannot be read, or is not what its header says.
    """

    def __init__(self, file: Path) -> None:
        self.header = read_header(file)
        try:
            with open_regular(file) as opened:
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise StoreError(f"{file} cannot be read: {error}") from None
        count, width = self.header.tokens, self.header.token_bytes
        if len(self._map) != self.header.file_bytes:
            raise StoreError(f"{file} changed while it was opened")
        self._width = width
        self._at = HEADER_BYTES + count * SUFFIX_BYTES
        self._last = self._at + (count - 1) * width  # a damaged order may lead behind it; what stands there ends a text
        self._suffixes: NDArray[np.uint32] = np.frombuffer(self._map, np.uint32, count, HEADER_BYTES)
        self._tokens: NDArray[Any] = np.frombuffer(self._map, f">u{width}", count, self._at)
        self._rows = memoryview(self._map)[HEADER_BYTES : self._at].cast("I")
        self._check(file)
        self._starts, self._names = self._read_names(file)
        states_at, per_token = self._at + count * width, self.header.state_width
        self.states: NDArray[np.float16] = np.frombuffer(  # (tokens, state_width), of end marks zeros
            self._map, "<f2", count * per_token, states_at
        ).reshape(count, per_token)
        self._number = 1 + zlib.crc32(self.header.packed())

    def source(self, match: Match, token: int) -> int:
        """Where the token stands that followed a match, which it did: a number above those of any text's tokens."""
        row = self._narrowed(match, self._packed((token,)), 1).first
        place = int(self._rows[min(row, len(self._rows) - 1)]) + match.length  # a damaged order has it elsewhere
        return self._number << 32 | place

    def source_at(self, place: int) -> int:
        """The same for a place in the datastore."""
        return self._number << 32 | place

    def behind(self, place: int, most: int) -> list[int]:
        """Up to so many tokens that stand behind a place in the same text."""
        tokens: list[int] = self._tokens[place + 1 : place + 1 + most].tolist()
        separator = self.header.separator
        return tokens[: tokens.index(separator)] if separator in tokens else tokens

    def text_before(self, source: int, most: int) -> StoredText | None:
        """Where a source of this datastore stands; None for one that is not its own. `most`: of the tokens before."""
        place = source & 0xFFFFFFFF
        if source >> 32 != self._number or place >= self.header.tokens:
            return None
        before = self._tokens[max(0, place - most) : place].tolist()
        ends = [at for at, token in enumerate(before, 1) if token == self.header.separator]
        at = bisect.bisect_right(self._starts, place) - 1
        return StoredText(self._names[at] if at >= 0 else "", place, tuple(before[ends[-1] if ends else 0 :]))

    def longest(self, text: Sequence[int], most: int) -> Match:
        """The longest end of the text, of up to `most` tokens, that occurs; a match of length 0 where none does.

        What ends with a run occurs at least where the run does, so the length is found by bisection.
        """
        most = min(most, len(text))
        run = self._packed(text[len(text) - most :])
        low, step = 0, 1  # the last `low` tokens occur
        while low + step <= most and self._occurs(run[(most - low - step) * self._width :]):
            low, step = low + step, 2 * step
        high = min(most, low + step - 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self._occurs(run[(most - middle) * self._width :]):
                low = middle
            else:
                high = middle - 1
        return self._narrowed(Match(0, 0, len(self._rows)), run[(most - low) * self._width :], low)

    def extended(self, match: Match, token: int) -> Match | None:
        """The match with one more token behind it, or None where it never went on so."""
        longer = self._narrowed(match, self._packed((token,)), 1)
        return longer if longer.occurrences else None

    def followers(self, match: Match) -> dict[int, int]:
        """Which tokens followed the match, and how often; of very frequent ones a sample. End marks are not counted."""
        step = max(1, -(-match.occurrences // _SAMPLE))
        found = (self._counted if match.occurrences <= _FEW else self._counted_at_once)(match, step)
        found.pop(self.header.separator, None)
        return found

    def _counted(self, match: Match, step: int) -> dict[int, int]:
        """Which tokens followed, every `step`-th suffix looked at by itself: quicker for a few dozen."""
        data, width, at = self._map, self._width, self._at + match.length * self._width
        found: dict[bytes, int] = {}
        for suffix in self._rows[match.first : match.end : step]:
            start = min(at + suffix * width, self._last)
            token = data[start : start + width]
            found[token] = found.get(token, 0) + 1
        return {int.from_bytes(token, "big"): count for token, count in found.items()}

    def _counted_at_once(self, match: Match, step: int) -> dict[int, int]:
        """The same for many. Suffixes are sorted, so equal tokens stand together."""
        rows = self._suffixes[match.first : match.end : step].astype(np.int64)
        following = self._tokens[np.minimum(rows + match.length, self.header.tokens - 1)]
        starts = np.flatnonzero(following[1:] != following[:-1]) + 1
        tokens = [int(following[0]), *following[starts].tolist()]
        edges = [0, *starts.tolist(), len(following)]
        return {token: end - start for token, (start, end) in zip(tokens, itertools.pairwise(edges), strict=True)}

    def _packed(self, tokens: Sequence[int]) -> bytes:
        return b"".join(token.to_bytes(self._width, "big") for token in tokens)

    def _occurs(self, run: bytes) -> bool:
        row = bisect.bisect_left(self._rows, run, key=self._reader(0, len(run)))
        return row < len(self._rows) and self._reader(0, len(run))(self._rows[row]) == run

    def _narrowed(self, match: Match, run: bytes, length: int) -> Match:
        """The rows of the match whose suffixes go on with these tokens."""
        read = self._reader(match.length, len(run))
        first = bisect.bisect_left(self._rows, run, match.first, match.end, key=read)
        end = bisect.bisect_right(self._rows, run, first, match.end, key=read)
        return Match(match.length + length, first, end)

    def _reader(self, skipped: int, size: int) -> Any:
        """Suffix → `size` bytes of it, after so many tokens."""
        data, width, at = self._map, self._width, self._at + skipped * self._width

        def read(suffix: int) -> bytes:
            start = at + suffix * width
            return data[start : start + size]

        return read

    def _read_names(self, file: Path) -> tuple[list[int], list[str]]:
        """Where texts of another file begin, ascending, and the files' names."""
        packed = self._map[self.header.file_bytes - self.header.names_bytes :]
        try:
            named = msgspec.json.decode(packed, type=list[tuple[int, str]]) if packed else []
        except UNREADABLE as error:
            raise StoreError(f"{file} is damaged: names of files cannot be read: {error}") from None
        starts = [start for start, _ in named]
        if starts != sorted(set(starts)) or (starts and not 0 <= starts[0] <= starts[-1] < self.header.tokens):
            raise StoreError(f"{file} is damaged: its files do not follow each other")
        return starts, [name[:_MOST_NAME] for _, name in named]

    def _check(self, file: Path) -> None:
        """Refuse what would lead out of the file or out of the vocabulary. Wrong order only makes wrong guesses."""
        header = self.header
        for block in _blocks(self._suffixes):
            if int(block.max()) >= header.tokens:
                raise StoreError(f"{file} is damaged: suffix {int(block.max())} of {header.tokens} tokens")
        for block in _blocks(self._tokens):
            strange = block[(block >= header.vocab_size) & (block != header.separator)]
            if len(strange):
                raise StoreError(f"{file} is damaged: token {int(strange[0])} of a vocabulary of {header.vocab_size}")
        if int(self._tokens[-1]) != header.separator:
            raise StoreError(f"{file} is damaged: its last text has no end")


def write_datastore(
    opened: BinaryIO,
    header: DatastoreHeader,
    tokens: NDArray[Any],
    names: Sequence[tuple[int, str]] = (),
    states: NDArray[np.float16] | None = None,
    layer: int = 0,
) -> None:
    """Write a datastore of texts that `joined` made one.

    Args:
        states: (tokens, d) the target's states of the tokens after this layer, zeros where they are not known.
        names: where the texts of each file begin, ascending, and the file's name; of too many the first.
    """
    packed = msgspec.json.encode(names) if names else b""
    while len(packed) > MOST_NAMES_BYTES:
        names = names[: len(names) // 2]
        packed = msgspec.json.encode(names)
    header = msgspec.structs.replace(header, names_bytes=len(packed))
    if states is not None:
        header = msgspec.structs.replace(header, state_width=states.shape[1], state_layer=layer)
    opened.write(header.packed())
    opened.write(suffix_array(tokens).tobytes())
    opened.write(tokens.astype(f">u{header.token_bytes}").tobytes())
    if states is not None:
        opened.write(states.astype("<f2").tobytes())
    opened.write(packed)


def token_width(vocab_size: int) -> int:
    """How many bytes hold a token of this vocabulary, and the one behind every text."""
    return 2 if vocab_size < 1 << 16 else 4


def joined(texts: Iterable[Sequence[int]], vocab_size: int) -> NDArray[Any]:
    """(n,) all texts, each followed by the separator."""
    width = token_width(vocab_size)
    separator = np.array([(1 << 8 * width) - 1], f"u{width}")
    pieces = [part for text in texts for part in (np.array(text, separator.dtype), separator)]
    return np.concatenate(pieces) if pieces else separator[:0]


def _blocks(numbers: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (numbers[start : start + _BLOCK] for start in range(0, len(numbers), _BLOCK))


PASSAGE_TOKENS = 64
"""Places of so many tokens are looked into together, or not at all."""

_PASSAGES = 16
"""How many passages are looked into: those whose mean state is nearest."""

_NEIGHBOURS = 32
"""How many places are found."""

_SOFTNESS = 0.1
"""The larger, the less nearer places weigh more than others."""


class Neighbour(NamedTuple):
    """A place, its distance (1 − cosine, 0 to 2), and its share among those found with it."""

    place: int
    distance: float
    weight: float


class StateNeighbours:
    """The nearest places, found in two stages: the passages that are nearest as a whole, then their tokens.

    States are compared by the cosine after the mean of all is taken away. A state of zeros is that of no place.

    Reference: Li et al., Nearest Neighbor Speculative Decoding, arXiv:2405.19325, for the two stages and for weights
    that fall with the distance. Differs: passages are chosen by their states, not by a retriever of their words, and
    states are stored, not computed from the passages.
    """

    def __init__(self, states: NDArray[np.float16]) -> None:
        """(n, d) states of all places; read once here, for the means of passages."""
        self._states = states
        sums, counts = list[NDArray[np.float32]](), list[int]()
        for start in range(0, len(states), PASSAGE_TOKENS):
            rows = states[start : start + PASSAGE_TOKENS].astype(np.float32)
            sums.append(np.nan_to_num(rows, posinf=0.0, neginf=0.0).sum(axis=0))
            counts.append(int(rows.any(axis=1).sum()))
        known = np.array(counts, np.float32)[:, None]
        total = np.stack(sums)
        self._centre: NDArray[np.float32] = total.sum(axis=0) / max(1.0, float(known.sum()))
        self._means = _unit(total / np.maximum(known, 1.0) - self._centre) * (known > 0)

    def nearest(self, state: NDArray[np.float32], passages: int = _PASSAGES) -> list[Neighbour]:
        """The places nearest to a (d,) state, the nearest first."""
        query = _unit((state - self._centre)[None])[0]
        chosen = np.sort(np.argsort(-(self._means @ query), kind="stable")[:passages])
        starts = chosen[:, None] * PASSAGE_TOKENS + np.arange(PASSAGE_TOKENS)
        places = starts[starts < len(self._states)]
        rows = self._states[places].astype(np.float32)
        there = rows.any(axis=1) & np.isfinite(rows).all(axis=1)
        places, rows = places[there], rows[there]
        distances = 1.0 - _unit(rows - self._centre) @ query
        best = np.argsort(distances, kind="stable")[:_NEIGHBOURS]
        weights = np.exp((distances[best[:1]] - distances[best]) / _SOFTNESS)
        shares = weights / weights.sum() if len(best) else weights
        found = zip(places[best].tolist(), distances[best].tolist(), shares.tolist(), strict=True)
        return [Neighbour(*one) for one in found]


def _unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    """(n, d) rows of length 1; zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float32] = np.nan_to_num(rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit
