"""The suffix tree of this machine: the one in C where it can be compiled, else the one in Python."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Protocol

from specchat.compiled.build import NativeUnavailable
from specchat.structures.native_suffix_tree import NativeDrafter, NativeSuffixTree, suffix_library
from specchat.structures.suffix_draft import Draft, DraftLimits, draft
from specchat.structures.suffix_tree import SuffixTree

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


def suffix_trees(
    depth: int, limits: DraftLimits
) -> tuple[CountingTree, CountingTree, Callable[[Sequence[int]], Draft]]:
    """Two empty trees, and what drafts from both: from the end of the first one's text and a path after it."""
    if _compiled():
        own, past = NativeSuffixTree(depth), NativeSuffixTree(depth)
        return own, past, NativeDrafter((own, past), limits).draft
    trees = SuffixTree(depth), SuffixTree(depth)
    return *trees, partial(draft, trees, limits=limits)


@lru_cache(maxsize=1)
def _compiled() -> bool:
    try:
        suffix_library()
    except NativeUnavailable as error:
        _log.info("suffix trees are those in Python: %s", error)
        return False
    return True
