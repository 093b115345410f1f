"""A head on a draft model's states says how likely its next guess is accepted, and where a branch is to end."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from specchat.core.device_copy import to_host
from specchat.core.tree import ROOT, TokenTree

REFUSAL_WEIGHT = 6.0
"""A refused guess counts as much in the loss as so many accepted ones."""

_INNER = 48
_KEPT, _FIRST, _BETWEEN, _BATCH = 4096, 64, 4, 96
"""Judged guesses that are kept; how many come before the first step, and between two; how many a step learns from."""

_RATE, _DECAY = 4e-3, 1e-2
_SUREST = 12.0
"""Log odds beyond this tell no more."""

_MARK = b"SH01"
_CHECKSUM_BYTES = 32

Floats = np.ndarray[Any, np.dtype[np.float32]]


class StopHead:
    """How likely is what the draft model guesses next to be accepted, by its state and its own probability?

    A branch ends where the chance that one of its guesses is refused, 1 − Π p, is above a threshold. The head is a
    residual block on a narrow map of the last state, added to the log odds of the draft's likeliest token. So it says
    the draft's own probability until it has learnt. It learns from every guess that a round judged, refused ones
    weighted by `REFUSAL_WEIGHT`.

    What it looks at is known before a token is drawn, so draws keep their law.

    Reference: Huang et al., SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths, arXiv:2405.19715.
    Differs: it learns from the rounds themselves, while chatting, so no texts are mixed for it beforehand; it reads the
    state before a token, not the one after it, which saves the pass over the last token of a branch.
    """

    def __init__(self, hidden: int, threshold: float, weights: Callable[[], str]) -> None:
        """Nothing learnt yet; `weights` is the checksum of the draft model's, asked for when a state is kept."""
        self._hidden, self._threshold, self._weights = hidden, threshold, weights
        with torch.inference_mode(False):
            self._examples = torch.empty(_KEPT, hidden, dtype=torch.float16)
            self._odds, self._labels = torch.empty(_KEPT), torch.empty(_KEPT)
        self._places: dict[int, _Place] = {}
        self._begin()

    def _begin(self) -> None:
        """Forget what was learnt."""
        hidden, made = self._hidden, torch.Generator().manual_seed(0)
        with torch.inference_mode(False):
            self._parameters = [
                nn.Parameter(torch.randn(hidden, _INNER, generator=made) * hidden**-0.5),
                nn.Parameter(torch.randn(_INNER, _INNER, generator=made) * _INNER**-0.5),
                nn.Parameter(torch.zeros(_INNER)),
                nn.Parameter(torch.tensor([1.0, 0.0])),
            ]
        self._optimiser: torch.optim.Optimizer | None = None
        self._generator = made
        self._judged = 0
        self._learnt = False

    def read(self, nodes: Sequence[int], states: Tensor, best: Sequence[tuple[int, float]]) -> None:
        """Look at the (R, d) states of nodes; `best` has the likeliest token after each, and its log-probability."""
        (rows,) = to_host(states.float())
        normed = np.asarray(rows, np.float32)
        normed = normed / np.sqrt(np.square(normed).mean(axis=1, keepdims=True) + 1e-6)
        odds = np.array([_log_odds(logprob) for _, logprob in best], np.float32)
        chances = self.chances(normed, odds)
        for row, (node, (token, _)) in enumerate(zip(nodes, best, strict=True)):
            self._places[node] = _Place(token, float(chances[row]), normed[row], float(odds[row]))

    def chances(self, normed: Floats, odds: Floats) -> Floats:
        """(R,) how likely the next guess is accepted, from (R, d) states of mean square 1 and the draft's log odds."""
        down, block, out, scale = (parameter.detach().numpy() for parameter in self._parameters)
        inner = normed @ down
        mixed = inner @ block
        inner = inner + mixed / (1.0 + np.exp(-mixed))
        said: Floats = 1.0 / (1.0 + np.exp(-(inner @ out + scale[0] * odds + scale[1])))
        return said

    def guessed(self, node: int, token: int) -> None:
        """The draft's first guess after a node is not its likeliest token but this one."""
        self._places[node] = self._places[node]._replace(token=token)

    def goes_on(self, tree: TokenTree, node: int) -> bool:
        """Whether guesses are wanted after a node; always after the root, so that there is something to learn from."""
        return node == ROOT or 1.0 - self._stands(tree, node) <= self._threshold

    def judge(self, path: Sequence[int], emitted: Sequence[int]) -> None:
        """Learn from a round: the nodes on the accepted path, the root first, and the token that followed each."""
        before = self._judged // _BETWEEN
        for node, token in zip(path, emitted, strict=False):
            if (place := self._places.get(node)) is not None:
                at = self._judged % _KEPT
                self._examples[at] = torch.from_numpy(place.state)
                self._odds[at], self._labels[at] = place.odds, float(token == place.token)
                self._judged += 1
        if self._judged >= _FIRST:
            for _ in range(self._judged // _BETWEEN - before):
                self._step()

    def forget_tree(self) -> None:
        self._places.clear()

    def to_bytes(self) -> bytes:
        """The checksum of the draft model and the head's numbers; nothing where nothing was learnt."""
        if not self._learnt:
            return b""
        numbers = (parameter.detach().numpy().astype("<f4").tobytes() for parameter in self._parameters)
        return b"".join([self._known_by(), *numbers])

    def restore(self, data: bytes) -> None:
        """Go on from these bytes; with none, or with those of a head for another draft model, begin anew.

        Raises:
            ValueError: they are damaged.
        """
        self._begin()
        known_by, data = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
        if not known_by or known_by != self._known_by():
            return
        numbers = np.frombuffer(data, "<f4") if len(data) % 4 == 0 else np.array([math.nan])
        if not np.isfinite(numbers).all():
            raise ValueError("a stopping head with damaged numbers")
        if len(numbers) != sum(parameter.numel() for parameter in self._parameters):
            raise ValueError("a stopping head of another size")
        begin = 0
        with torch.inference_mode(False), torch.no_grad():
            for parameter in self._parameters:
                part = numbers[begin : begin + parameter.numel()].astype(np.float32)
                parameter.copy_(torch.from_numpy(part).view_as(parameter))
                begin += parameter.numel()
        self._learnt = True

    def _known_by(self) -> bytes:
        return hashlib.sha256(f"{self._weights()} {self._hidden}".encode()).digest()

    def _stands(self, tree: TokenTree, node: int) -> float:
        """How likely all guesses down to a node are accepted."""
        chance = 1.0
        while node != ROOT:
            parent = tree.parents[node]
            if (place := self._places.get(parent)) is not None:
                chance *= place.chance if tree.tokens[node] == place.token else 1.0 - place.chance
            node = parent
        return chance

    def _step(self) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            if self._optimiser is None:
                self._optimiser = torch.optim.AdamW(self._parameters, lr=_RATE, weight_decay=_DECAY)
            at = torch.randint(min(self._judged, _KEPT), (_BATCH,), generator=self._generator)
            down, block, out, scale = self._parameters
            inner = self._examples[at].float() @ down
            inner = inner + nn.functional.silu(inner @ block)
            said = inner @ out + scale[0] * self._odds[at] + scale[1]
            labels = self._labels[at]
            weights = torch.where(labels > 0, 1.0, REFUSAL_WEIGHT)
            loss = nn.functional.binary_cross_entropy_with_logits(said, labels, weights)
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
            self._learnt = True


class _Place(NamedTuple):
    """A node that was read: the first guess after it, how likely that is accepted, and what the head looked at."""

    token: int
    chance: float
    state: Floats
    odds: float


def joined_state(head: bytes, rest: bytes) -> bytes:
    """Bytes of a head, and of what else a draft model keeps; the rest alone where there is no head."""
    return b"".join([_MARK, len(head).to_bytes(4, "little"), head, rest]) if head else rest


def split_state(state: bytes) -> tuple[bytes, bytes]:
    """The two parts again; ValueError if the first is cut off."""
    if not state.startswith(_MARK):
        return b"", state
    begin = len(_MARK) + 4
    end = begin + int.from_bytes(state[len(_MARK) : begin], "little")
    if len(state) < max(begin, end):
        raise ValueError("a stopping head that is cut off")
    return state[begin:end], state[end:]


def _log_odds(logprob: float) -> float:
    chance = min(1.0 - 1e-7, math.exp(logprob))
    return max(-_SUREST, min(_SUREST, math.log(max(chance, 1e-7)) - math.log1p(-chance)))
