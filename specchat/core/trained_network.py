"""The interface of trained networks, and their answers after some nodes of a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.head_needs import HeadNeeds
from specchat.core.learnt import Learnt
from specchat.core.round import Round
from specchat.core.states import TextStates
from specchat.core.tree import TokenTree

Tokens = np.ndarray[Any, np.dtype[np.int32 | np.int64]]
Logprobs = np.ndarray[Any, np.dtype[np.float32 | np.float64]]


@dataclass(frozen=True)
class Ahead:
    """What will be asked of a tree that begins, where no other drafter takes part: what one call may compute.

    Args:
        width: guesses that are asked for after each node.
        budget: the nodes of most worth that stay; see `trees.growth`.
    """

    width: int
    budget: Budget


@dataclass(frozen=True)
class Guessed:
    """Which tokens probably follow n nodes; on the host. It may be written over once the next tree begins.

    Args:
        tokens: (n, C) the likeliest, best first.
        logprobs: (n, C) their log-probabilities among the tokens that can be guessed.
        possible: (H,) the tokens that can be guessed.
        totals: (n,) what was taken from the logits to make log-probabilities of them.
        compute_logits: () → (n, H) of all of them; few rules ask.
    """

    tokens: Tokens
    logprobs: Logprobs
    possible: Tokens
    totals: Logprobs
    compute_logits: Callable[[], Tensor]

    @property
    def logits(self) -> Tensor:
        """(n, H) logits of all tokens that can be guessed."""
        return self.compute_logits()

    def of(self, rows: Sequence[int]) -> Guessed:
        """What follows these of the n nodes, each as often as it is named."""
        some = list(rows)
        return Guessed(
            self.tokens[some], self.logprobs[some], self.possible, self.totals[some], lambda: self.logits[some]
        )


class TrainedNetwork(Protocol):
    """What probably follows, by a small network that was trained to guess it from the target's own states?"""

    layers: frozenset[int]
    """Of the target, whose states it reads."""
    depth: int
    """Nodes of this depth and deeper it cannot be asked about."""

    @property
    def passes(self) -> int:
        """Forward passes so far."""

    def take(self, states: TextStates) -> None:
        """States of the text; they come as `Drafter.text_tap` is given them."""

    @property
    def skip(self) -> Callable[[int, Sequence[int]], None] | None:
        """Told of tokens of the text whose states do not come; None for a network that needs them all."""

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        """A tree is to grow below the last token of this text. False where states of the text are missing.

        Results do not depend on `ahead`, only how soon they come.
        """

    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """Read nodes of one depth, each once, after their parents: what probably follows each of them."""

    def compiled(self, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        """After `begin`: how compiled code reads the tree by itself; None where only `read` can do so.

        Args:
            tokens: that it will be asked about for sure, the root among them.
            rows: so many it may be asked about.
        """

    def count_passes(self, count: int) -> None:
        """Compiled code let it read so many times."""


class LearningTrainedNetwork(TrainedNetwork, Protocol):
    """A trained network that can go on learning from the user's replies.

    What it learns is saved and restored as `KeepsState` says, and learnt as `IdleWorker` does.
    """

    @property
    def needs(self) -> HeadNeeds:
        """What it looks at of the target's readings: see `Drafter.needs`."""

    def start(self, history: Sequence[int]) -> None:
        """A reply begins behind this text: from here to its end the weights stay as they are."""

    def learn(self, wanted: bool) -> None:
        """Learn from replies from now on, or no longer."""

    def observe(self, round: Round) -> None:
        """A round of the reply is over."""

    def reply_ended(self) -> None:
        """The reply is over."""

    @property
    def learnt(self) -> Learnt:
        """What was learnt so far."""

    def idle(self, deadline: float) -> bool:
        """Learn; see `IdleWorker`."""

    def save_state(self) -> bytes:
        """What was learnt; see `KeepsState`."""

    def restore_state(self, state: bytes) -> None:
        """Go on from what was learnt; see `KeepsState`."""
