"""Drafters that need no model to run: one that learns and works in idle time, one that has trained weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from safetensors.torch import load_file

from specchat.core.context import Context
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import Guess, TokenTree
from specchat.drafters.options import trained_weights
from specchat.drafters.parts import Parts
from specchat.registry import option


@dataclass(frozen=True)
class ConstantOptions:
    weights: str = trained_weights()


class Constant(Drafter):
    """Guesses the one token that its weights name, after everything."""

    def __init__(self, options: ConstantOptions, parts: Parts) -> None:
        assert parts.trained is not None, "the table says that it needs weights"
        self.token = int(load_file(parts.trained.weights)["token"])

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        return [[Guess(self.token, proposer="constant")] for _ in frontier]


@dataclass(frozen=True)
class LearningOptions:
    slices: int = option(20, "idle work after every text, in pieces of 5 ms", minimum=0)


class Learning(Drafter):
    """Counts the texts it has seen, guesses that number, and counts itself up further while the engine is idle."""

    def __init__(self, options: LearningOptions, parts: Parts) -> None:
        self.texts = self.worked = 0
        self._owed = 0
        self._slices = options.slices

    def start(self, history: Sequence[int]) -> None:
        self.texts += 1
        self._owed = self._slices

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        return [[Guess(min(self.texts, context.vocab_size - 1), proposer="learning")] for _ in frontier]

    def save_state(self) -> bytes:
        return f"{self.texts} {self.worked}".encode() if self.texts else b""

    def restore_state(self, state: bytes) -> None:
        self.texts, self.worked = map(int, state.split() or (0, 0))

    def idle(self, deadline: float) -> bool:
        while self._owed and time.monotonic() < deadline:
            time.sleep(0.005)
            self._owed -= 1
            self.worked += 1
        return self._owed > 0
