"""Teacher forcing: plain decoding along a given text, with the margin of its own token at every place.

It says where two replies to one prompt first differ, and whether rounding explains that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.core.context import Context
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Sampling, law, penalise
from specchat.core.seams import Model
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.errors import UsageError
from specchat.models.decoder.cache_rows import common_prefix

_TOP = 10
"""Logits that could win: how far passes of different sizes differ is measured on these."""

_SLACK = 2.0
"""Factor on the measured difference between passes: the largest of a few dozen places is not the largest of all."""


@dataclass(frozen=True)
class Margin:
    """By how much plain decoding prefers its own token to the one in a text.

    Args:
        place: index in the reply.
        gap: the difference of their scores: logits, or, when sampling, noisy log-probabilities.
    """

    place: int
    token: int
    preferred: int
    gap: float


@dataclass(frozen=True)
class Judge:
    """Scores tokens exactly as the target's own draw does: processed logits, and the position's noise."""

    sampling: Sampling
    seed: int

    def margin(self, prompt: Sequence[int], reply: Sequence[int], place: int, logits: Tensor) -> Margin:
        """The margin at one place of a reply, from the (V,) raw logits that decide it."""
        history = [*prompt, *reply[:place]]
        context = Context(history, len(prompt), logits.numel(), self.sampling, Noise(self.seed))
        token = reply[place]
        ids, scores = self._scores(context, logits, self.sampling)
        if not bool((ids == token).any()):  # truncated away, perhaps only just
            ids, scores = self._scores(context, logits, _loosened(self.sampling))
        best = int(scores.argmax())
        found = (ids == token).nonzero()
        gap = float(scores[best] - scores[int(found[0])]) if found.numel() else math.inf
        return Margin(place, token, int(ids[best]), gap)

    def _scores(self, context: Context, logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
        processed = penalise(logits, sampling, context.counts)
        if sampling.greedy:
            return torch.arange(logits.numel(), device=logits.device), processed.double()
        kept = law(processed, sampling)
        noise = context.noise.gumbel(Stream.TARGET, len(context.history), kept.all_ids())
        return kept.all_ids(), kept.logprobs + noise


def _loosened(sampling: Sampling) -> Sampling:
    """The same law with its truncation a little wider: where a rounding error may have put the boundary."""
    return dataclasses.replace(
        sampling,
        top_k=sampling.top_k + 2 if sampling.top_k else 0,
        top_p=min(1.0, sampling.top_p + 0.02),
        min_p=sampling.min_p * 0.9,
    )


def forced(target: Model, prompt: Sequence[int], reply: Sequence[int]) -> Iterator[Tensor]:
    """(V,) logits that decide each token of the reply, read one row at a time as plain decoding does."""
    return chained(target, prompt, reply, rows=1)


def chained(target: Model, prompt: Sequence[int], reply: Sequence[int], rows: int) -> Iterator[Tensor]:
    """(V,) logits that decide each token of the reply, read so many rows at a time. Empties the cache first."""
    target.prefill(())
    target.prefill(prompt[:-1])
    text = [prompt[-1], *reply]
    for begin in range(0, len(reply), rows):
        tree = chain(text[begin : min(begin + rows, len(reply))], target.vocab_size)
        reading = target.read(tree)
        yield from (reading.after(node) for node in range(len(tree)))
        target.keep(range(1, len(tree)))


def chain(tokens: Sequence[int], vocab_size: int) -> TokenTree:
    """A frozen tree of one branch: the root, then one child below the other."""
    tree = TokenTree(tokens[0], vocab_size)
    node = ROOT
    for token in tokens[1:]:
        node = tree.add(node, Guess(token, proposer="text"))
    return tree.freeze()


def read_after(target: Model, history: Sequence[int]) -> Tensor:
    """(V,) logits after a text, from a pass of one row."""
    target.prefill(())
    target.prefill(history[:-1])
    logits = target.read(TokenTree(history[-1], target.vocab_size).freeze()).after(ROOT)
    target.keep(())
    return logits


def disturbance(ones: Sequence[Tensor], target: Model, prompt: Sequence[int], reply: Sequence[int], rows: int) -> float:
    """How far two likely logits can move against each other when a pass has `rows` rows instead of one.

    Args:
        ones: (V,) logits after each token of the reply, as passes of one row gave them (`forced`).
    """
    moved = 0.0
    for one, many in zip(ones, chained(target, prompt, reply, rows), strict=True):
        places = one.topk(min(_TOP, one.numel())).indices
        difference = (many[places].double() - one[places].double()).cpu()
        moved = max(moved, float(difference.max() - difference.min()))
    return moved


def allowed_gap(measured: float, sampling: Sampling) -> float:
    """The margin up to which two tokens count as tied, from a measured disturbance of logits."""
    return _SLACK * measured / (1.0 if sampling.greedy else sampling.temperature)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place at which two replies differ; None where they do not."""
    place = common_prefix(one, other)
    return None if place == len(one) == len(other) else place


_CALIBRATION_TOKENS = 48
_CALIBRATION_ROWS = (2, 8, 17)


@dataclass(frozen=True)
class FirstDivergence:
    """The first place at which a reply is not plain decoding's."""

    margin: Margin
    allowed: float  # the margin up to which two tokens count as tied: what passes of different sizes differ by

    @property
    def tie(self) -> bool:
        """Whether rounding explains that the two replies differ here."""
        return self.margin.gap <= self.allowed


class Comparer:
    """Compares replies with plain's over one loaded target. Measures what counts as a tie when first needed.

    Args:
        exact: no margin is excused: in float32 the text must be the same.
    """

    def __init__(self, target: Model, exact: bool) -> None:
        self._target = target
        self._exact = exact
        self._moved: float | None = None

    def first_divergence(
        self, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], sampling: Sampling, seed: int
    ) -> FirstDivergence | None:
        """Where the other reply leaves plain decoding's to the same prompt with the same seed; None: nowhere.

        Reads the target, whose cache then holds something else.

        Raises:
            UsageError: a token that the target does not know.
        """
        if (token := max([0, *plain, *other])) >= (size := self._target.vocab_size):
            raise UsageError(f"token {token} is outside the vocabulary of {size}")
        place = first_difference(plain, other)
        if place is None:
            return None
        judge = Judge(sampling, seed)
        if place >= len(other) or place >= len(plain):
            margin = Margin(place, -1, -1, float("inf"))  # one ended where the other went on with the same tokens
        else:
            logits = read_after(self._target, [*prompt, *other[:place]])
            margin = judge.margin(prompt, other, place, logits)
            if margin.preferred == margin.token:  # plain's token, from this pass, is the other's: seen from there
                margin = judge.margin(prompt, plain, place, logits)
        allowed = 0.0 if self._exact else allowed_gap(self._disturbance(prompt, plain), judge.sampling)
        return FirstDivergence(margin, allowed)

    def _disturbance(self, prompt: Sequence[int], plain: Sequence[int]) -> float:
        if self._moved is None:
            reply = plain[:_CALIBRATION_TOKENS]
            ones = [logits.clone() for logits in forced(self._target, prompt, reply)]
            self._moved = max(disturbance(ones, self._target, prompt, reply, rows) for rows in _CALIBRATION_ROWS)
        return self._moved
