"""Proposes nothing, so that every round is plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.core.context import Context
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import DrawKind, TokenTree
from specchat.drafters.parts import Parts
from specchat.registry import NoOptions


class Nothing(Drafter):
    """No guess for any node, so that every round is plain decoding.

    specchat's own.
    """

    kinds = frozenset(DrawKind)
    """All kinds: it makes no draws, so every rule can judge them."""

    @staticmethod
    def names_sources(options: NoOptions, members: Sequence[bool]) -> bool:
        """No guesses, so there is none that names no source."""
        return True

    def __init__(self, options: NoOptions, parts: Parts) -> None:
        del options, parts

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        return [() for _ in frontier]
