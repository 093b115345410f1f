"""The suffix tree in C: the same counts, and drafts from them, in a few microseconds."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from specchat.compiled.build import Sources, find_compiler, load
from specchat.core.compiled_guessing import CompiledLookup
from specchat.indexes.suffix_draft import DraftLimits, SuffixDraft

_FLAGS = ("-O2", "-std=gnu11", "-ffp-contract=off", "-shared", "-fPIC")
_POINTER, _SHORT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


def suffix_sources() -> Sources:
    """The suffix tree's C, and how it is compiled; NativeUnavailable without a compiler."""
    here = Path(__file__).parent
    command, headers = (*find_compiler(), *_FLAGS), here.parent / "core" / "native"
    return Sources(here / "native", "suffix", command, brief=True, headers=headers)


@lru_cache(maxsize=1)
def suffix_library() -> ctypes.CDLL:
    """The compiled C, compiled now if need be; NativeUnavailable without a compiler, or if it fails."""
    library = load(suffix_sources()).library
    library.suffix_new.restype = _POINTER
    library.suffix_new.argtypes = [_SHORT]
    library.suffix_free.restype = None
    for name in ("suffix_tokens", "suffix_growing", "suffix_finished", "suffix_count"):
        getattr(library, name).restype = _LONG
    for name in ("free", "clear", "end_text", "forget_oldest", "tokens", "growing", "finished"):
        getattr(library, f"suffix_{name}").argtypes = [_POINTER]
    library.suffix_extend.argtypes = library.suffix_begins.argtypes = [_POINTER, _POINTER, _LONG]
    library.suffix_count.argtypes = [_POINTER, _POINTER, _SHORT]
    library.suffix_draft.argtypes = [
        _POINTER, _SHORT, _POINTER, _SHORT, _POINTER, ctypes.c_double, _POINTER, _POINTER, _POINTER,
    ]  # fmt: skip
    library.guess_search_new.restype = _POINTER
    library.guess_search_free.restype = library.guess_search_learn.restype = None
    library.guess_search_free.argtypes = [_POINTER]
    library.guess_search.argtypes = [_POINTER, _POINTER, _SHORT]
    library.guess_search_learn.argtypes = [*(_POINTER,) * 4, _SHORT]
    library.translated_new.restype = _POINTER
    library.translated_free.restype = None
    library.translated_new.argtypes = [_POINTER, _SHORT, _SHORT, _POINTER]
    library.translated_free.argtypes = [_POINTER]
    library.translated_answer.argtypes = [_POINTER, _POINTER, _SHORT]
    library.translated_learn.argtypes = [_POINTER, _POINTER, _SHORT, _SHORT]
    library.translated_begin.argtypes = [_POINTER, _SHORT, _SHORT, _POINTER, _POINTER]
    return library


class NativeSuffixTree:
    """All runs of up to `depth` tokens of several texts, like `SuffixTree`; NativeUnavailable if it cannot be made."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.library = suffix_library()
        self.address = self.library.suffix_new(depth)
        if not self.address:
            raise MemoryError("no memory for a suffix tree")
        weakref.finalize(self, self.library.suffix_free, self.address)
        self._tokens = 0  # asking C for it takes 5 µs of a round

    def __len__(self) -> int:
        return self._tokens

    @property
    def finished(self) -> int:
        return int(self.library.suffix_finished(self.address))

    def begins(self, text: Sequence[int]) -> bool:
        tokens = array("i", text)
        return bool(self.library.suffix_begins(self.address, tokens.buffer_info()[0], len(tokens)))

    def clear(self) -> None:
        _done(self.library.suffix_clear(self.address))
        self._tokens = 0

    def extend(self, tokens: Sequence[int]) -> None:
        more = array("i", tokens)
        address, count = more.buffer_info()
        _done(self.library.suffix_extend(self.address, address, count))
        self._tokens += count

    def end_text(self) -> None:
        _done(self.library.suffix_end_text(self.address))

    def forget_oldest(self) -> None:
        assert not self.library.suffix_growing(self.address), "texts are forgotten between two texts"
        if not self.finished:
            raise IndexError("there is no complete text")
        _done(self.library.suffix_forget_oldest(self.address))
        self._tokens = int(self.library.suffix_tokens(self.address))

    def count(self, run: Sequence[int]) -> int:
        tokens = array("i", run)
        return int(self.library.suffix_count(self.address, tokens.buffer_info()[0], len(tokens)))


class NativeDrafter:
    """Drafts from some trees of one depth, like `suffix_draft.draft`. Reuses its buffers from call to call.

    Attributes:
        lookup: the same for compiled code; valid as long as this is kept.
    """

    def __init__(self, trees: Sequence[NativeSuffixTree], limits: DraftLimits) -> None:
        depth = trees[0].depth
        assert all(tree.depth == depth for tree in trees), "trees of one depth"
        assert len(limits.by_match) == depth + 1, "a limit for every length of match"
        assert max(limits.by_match) <= depth, "results have room for so many tokens"
        self._trees = tuple(trees)
        self._addresses = (_POINTER * len(trees))(*(tree.address for tree in trees))
        self._limits = array("i", limits.by_match)
        self._above, self._tokens, self._chances = (
            array("i", [0] * depth),
            array("i", [0] * depth),
            array("d", [0] * depth),
        )
        self._sizes = self._limits.buffer_info()[0], limits.probability
        self._results = [buffer.buffer_info()[0] for buffer in (self._above, self._tokens, self._chances)]
        self._call = trees[0].library.suffix_draft
        self.lookup = CompiledLookup(
            ctypes.addressof(self._addresses), len(trees), self._limits.buffer_info()[0], limits.probability
        )

    def draft(self, path: Sequence[int]) -> SuffixDraft:
        """The continuation that should save most tokens, after the end of the first tree's text and `path`."""
        tokens = array("i", path)
        text = tokens.buffer_info()[0], len(tokens)
        count = self._call(self._addresses, len(self._trees), *text, *self._sizes, *self._results)
        if count < 0:
            raise MemoryError("no memory for a draft")
        return SuffixDraft(self._above[:count].tolist(), self._tokens[:count].tolist(), self._chances[:count].tolist())


def _done(outcome: int) -> None:
    if outcome:
        raise MemoryError("no memory for a suffix tree")
