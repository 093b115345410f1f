"""What compiled code takes of drafters that it asks by itself, while it grows a whole tree in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.record import record
from specchat.core.seams import Drafter
from specchat.core.tree import TokenTree


@dataclass(frozen=True)
class CompiledLookup:
    """Suffix trees as compiled code drafts from them; see `suffix_draft` in structures/native/draft.c.

    Args:
        trees: address of the trees' addresses; the text is the end of the first one's.
        count: of them.
        limits: address of how many tokens a match may draft, by its length.
        probability: paths less likely than this are not drafted.
    """

    trees: int
    count: int
    limits: int
    probability: float


@record
class CompiledNetwork:
    """A trained network as compiled code reads a tree with it; valid for one tree.

    Args:
        read: address of a `ReadRows`, as structures/native/guess_search.h declares it; 0 where the network lacks states
            of the text and says nothing.
        network: address of what it is called with.
        turn: what is held while it is called, and keeps what lies at the address.
    """

    read: int = 0
    network: int = 0
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)


@record
class BestFirstShape:
    """Which tree a best-first search is to grow; see `trees.growth`.

    Args:
        budget: nodes, depth, width, prices.
        batch: nodes per call, those of most worth; 0: the search decides.
        floor: guesses worth less than this get no place.
    """

    budget: Budget
    batch: int = 0
    floor: float = 0.0


@runtime_checkable
class AskedByCompiledCode(Protocol):
    """A drafter whose guesses compiled code can ask for."""

    @property
    def proposer(self) -> str:
        """The name that its guesses carry."""

    def compiled(self, context: Context, tokens: Sequence[int], rows: int) -> CompiledLookup | CompiledNetwork | None:
        """What compiled code asks for guesses of a tree that begins; None where only `propose` can be asked.

        Args:
            tokens: what a network must know to read: the root, and more of the tree.
            rows: so many it may be let read.
        """

    def count_passes(self, count: int) -> None:
        """Compiled code let it read so many times."""


BestFirstGrowth = Callable[[Context, BestFirstShape], TokenTree | None]
"""The frozen tree that the best-first search over a drafter's proposals would grow; None where it cannot be had sooner
than by that."""


def best_first_growth(drafter: Drafter) -> BestFirstGrowth | None:
    """The method `grow_best_first` of a drafter that has one. Looked for by name, since a class is compared with a
    protocol in the time that growing a tree takes."""
    growth: BestFirstGrowth | None = getattr(drafter, "grow_best_first", None)
    return growth
