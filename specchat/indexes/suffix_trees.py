"""The suffix tree of this machine: the one in C where it can be compiled, else the one in Python."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from specchat.compiled.build import NativeUnavailable
from specchat.core.compiled_guessing import CompiledLookup
from specchat.indexes.native_suffix_tree import NativeDrafter, NativeSuffixTree, suffix_library
from specchat.indexes.suffix_draft import Draft, DraftLimits, draft
from specchat.indexes.suffix_tree import SuffixTree

_log = logging.getLogger(__name__)


class CountingTree(Protocol):
    """How often every run of tokens occurred in some texts, the last of which grows."""

    def __len__(self) -> int:
        """Tokens of all texts."""

    def begins(self, text: Sequence[int]) -> bool:
        """Whether the text begins with the growing one."""

    def clear(self) -> None:
        """Forget all texts."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the growing text."""

    def end_text(self) -> None:
        """The growing text is complete; another one begins."""

    def forget_oldest(self) -> None:
        """Take the oldest complete text out."""


class DraftsFromTrees(Protocol):
    """Drafts from some trees."""

    @property
    def lookup(self) -> CompiledLookup | None:
        """The same for compiled code, where it is compiled itself."""

    def draft(self, path: Sequence[int]) -> Draft:
        """The continuation that should save most tokens, after the end of the first tree's text and `path`."""


class _DrafterInPython:
    """`DraftsFromTrees` where nothing can be compiled."""

    lookup = None

    def __init__(self, trees: Sequence[SuffixTree], limits: DraftLimits) -> None:
        self._trees, self._limits = trees, limits

    def draft(self, path: Sequence[int]) -> Draft:
        return draft(self._trees, path, self._limits)


def suffix_trees(depth: int, limits: DraftLimits) -> tuple[CountingTree, CountingTree, DraftsFromTrees]:
    """Two empty trees, and what drafts from both."""
    if _compiled():
        own, past = NativeSuffixTree(depth), NativeSuffixTree(depth)
        return own, past, NativeDrafter((own, past), limits)
    trees = SuffixTree(depth), SuffixTree(depth)
    return *trees, _DrafterInPython(trees, limits)


@lru_cache(maxsize=1)
def _compiled() -> bool:
    try:
        suffix_library()
    except NativeUnavailable as error:
        _log.info("suffix trees are those in Python: %s", error)
        return False
    return True
