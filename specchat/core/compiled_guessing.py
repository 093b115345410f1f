"""Guesses for compiled code, which asks drafters by itself while it grows a whole tree in one call."""

from __future__ import annotations

import sys
from array import array
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

from specchat.core.budget import Budget
from specchat.core.record import record


@dataclass(frozen=True)
class CompiledLookup:
    """Suffix trees as compiled code drafts from them; see `suffix_draft` in indexes/native/draft.c.

    Args:
        trees: address of the trees' addresses; the text is the end of the first one's.
        limits: address of how many tokens a match may draft, by its length.
        probability: paths less likely than this are not drafted.
    """

    trees: int
    count: int
    limits: int
    probability: float


@dataclass(frozen=True)
class CompiledTable:
    """A table of successors as compiled code looks them up.

    Args:
        successors: address of (tokens, count) numbers: for every token those that follow it, the likeliest first, or −1
            behind those that are known.
        by_rank: address of (count) log-probabilities.
    """

    successors: int
    tokens: int
    count: int
    by_rank: int


@record
class CompiledNetwork:
    """A network as compiled code reads a tree with it; valid for one tree.

    Args:
        read: address of a `ReadRows`, as indexes/native/growing_tree.h declares it; 0 where the network lacks states
            of the text and says nothing.
        network: address of what it is called with.
        turn: what is held while it is called, and keeps what lies at the address.
        logits: whether it names logits instead of log-probabilities.
        one_pass: whether the pass that answers for the root answers for the whole tree.
    """

    read: int = 0
    network: int = 0
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    logits: bool = False
    one_pass: bool = False


Asked = CompiledLookup | CompiledTable | CompiledNetwork
"""What compiled code asks for guesses."""


@dataclass(frozen=True)
class RankShape:
    """A static tree's shape as numbers: which guesses get children; nodes of the shape, the root first.

    Args:
        widths: of each node how many children it gets.
        begins: of each where these stand in `below`.
        below: of each child its node in the shape; −1 for one that gets no children.
    """

    widths: array[int]
    begins: array[int]
    below: array[int]

    @cached_property
    def widest(self) -> int:
        """The most children that a node gets."""
        return max(self.widths)


@record
class GrowthPlan:
    """Which tree a search for the guesses of most worth is to grow; see `trees.growth` and `indexes.guess_search`.

    Args:
        budget: nodes, depth, width, prices.
        batch: nodes per call, those of most worth; 0: the search decides, or the whole level.
        floor: guesses worth less than this get no place.
        decay: factor on the worth of a guess for every level it lies below the root.
        calls: how often the drafter may be asked.
        levels: whether a node skipped at its level stays skipped (else it may be asked about later).
        fallback: a node none of whose guesses is so likely gets no children.
        beams: guesses of a level that may get places, those of the likeliest paths; 0: all.
        first_come: whether guesses get places in the order in which they are found, until all places are taken.
        repeat: a node that ends in so many of another node's last tokens copies what follows that; 0: none does.
        shape: of a static tree; None: any node may get `budget.width` children.
    """

    budget: Budget
    batch: int = 0
    floor: float = 0.0
    decay: float = 1.0
    calls: int = sys.maxsize
    levels: bool = False
    fallback: float = 0.0
    beams: int = 0
    first_come: bool = False
    repeat: int = 0
    shape: RankShape | None = None
