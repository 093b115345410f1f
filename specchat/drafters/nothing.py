"""Proposes nothing, so that every round is plain decoding."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specchat.core.context import Context
from specchat.core.request import ExtraRow
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.states import HiddenStateSink
from specchat.core.tree import DrawKind, TokenTree
from specchat.drafters.parts import Parts
from specchat.registry import NoOptions


class Nothing:
    """No guess for any node, so that every round is plain decoding.

    specchat's own.
    """

    taps: Sequence[int] = ()
    hidden_state_sink: HiddenStateSink | None = None
    passes = 0

    @staticmethod
    def draw_kinds(options: NoOptions, members: Sequence[Collection[DrawKind]]) -> frozenset[DrawKind]:
        """All kinds: it makes no draws, so every rule can judge them."""
        return frozenset(DrawKind)

    @staticmethod
    def names_sources(options: NoOptions, members: Sequence[bool]) -> bool:
        """No guesses, so there is none that names no source."""
        return True

    def __init__(self, options: NoOptions, parts: Parts) -> None:
        del options, parts

    def start(self, history: Sequence[int]) -> None:
        """Nothing to remember."""

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) empty proposals."""
        return [() for _ in frontier]

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        """None."""
        return ()

    def observe(self, round: Round) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to let go of."""
