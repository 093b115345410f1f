"""The common base of drafters that let an inner drafter guess and ask nothing of the target's pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Generic, Protocol, TypeVar

from specchat.core.context import Context
from specchat.core.request import ExtraRow
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.states import HiddenStateSink
from specchat.core.tree import DrawKind, TokenTree


class Drafting(Protocol):
    """The part of a drafter that guesses with a network of its own, as `Drafter` describes it."""

    @property
    def passes(self) -> int:
        """Forward passes of the network so far."""

    def start(self, history: Sequence[int]) -> None:
        """A text begins, or changed other than by a round."""

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node its guesses."""

    def observe(self, round: Round) -> None:
        """Keep the accepted path."""

    def close(self) -> None:
        """Let go of what it holds."""


Inner = TypeVar("Inner", bound=Drafting)


class InnerDrafter(Generic[Inner]):
    """A drafter whose guesses come from an inner one. It needs nothing of the target's pass but the reading.

    What the drafters that extend it add is the choice of the network, or of the text that the network reads.
    """

    hidden_state_sink: HiddenStateSink | None = None

    @staticmethod
    def draw_kinds(options: Any, members: Sequence[Collection[DrawKind]]) -> frozenset[DrawKind]:
        """All kinds: the inner drafter's network has a law of its own."""
        return frozenset(DrawKind)

    def __init__(self, drafting: Inner) -> None:
        self._drafting = drafting

    @property
    def taps(self) -> Sequence[int]:
        """No layers."""
        return ()

    @property
    def passes(self) -> int:
        """Forward passes of the inner drafter so far."""
        return self._drafting.passes

    def start(self, history: Sequence[int]) -> None:
        """Let the inner drafter begin."""
        self._drafting.start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node what the inner drafter holds likely."""
        return self._drafting.propose(tree, frontier, width, context)

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        """None: drafting makes passes of its own."""
        return ()

    def observe(self, round: Round) -> None:
        """Let the inner drafter keep the accepted path."""
        self._drafting.observe(round)

    def close(self) -> None:
        """Close the inner drafter."""
        self._drafting.close()
