"""Points from what a draft network holds likely: its likeliest tokens, or those that win with the target's noise."""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from specchat.core.context import Context
from specchat.core.device_copy import to_host
from specchat.core.noise import Stream
from specchat.core.reading import Reading
from specchat.core.sampling import Counts, Sampling, best_tokens
from specchat.core.seams import Proposal
from specchat.core.tree import DrawKind, PointRows, TokenTree, joined
from specchat.indexes.called_network import Named, as_named, named_of

_HOPELESS = 9.0
"""Tokens whose score is lower than the best by more win once in 8000 times: not worth their noise.
network_guesses.h has the same number."""

Tokens = np.ndarray[Any, np.dtype[np.int32 | np.int64]]
Scores = np.ndarray[Any, np.dtype[np.float64]]


def coupled(tokens: Tokens, logprobs: Scores, positions: Sequence[int], context: Context) -> tuple[Tokens, Scores]:
    """The tokens in the order in which they win with the target's own noise, and how likely the target agrees.

    They are in the order in which the target would draw them if its law were q. It is not: its logits differ from the
    drafter's by about as much at every temperature. So a guess claims its share in a softmax of log q + T · noise:
    the colder the chat, the less noise counts against that difference, and at temperature 0 the claim would be q.
    Tokens that truncation excludes have a share too: q cannot tell for certain which the target excludes, so a lone
    survivor is not certain. They are not guessed.
    Only likely tokens compete: the noise of a whole vocabulary takes longer than a small model's pass. Row by row
    without tensors: few tokens survive, and torch takes longer to get going.

    Where a rule weighs the probabilities of draws, noise is left out: what its trials leave is drawn with the same
    noise, so nothing that decides which draws find a place in the tree may depend on it.

    Args:
        tokens, logprobs: (n, C) tokens, the likeliest first, and log q.
        positions: n times the position whose noise decides.

    Returns:
        (n, C) tokens, and the logarithms of what they claim; −inf for those that have no chance.
    """
    if context.wanted is not DrawKind.POINT:
        return tokens, logprobs
    ordered, claims = np.empty_like(tokens), np.full(tokens.shape, -np.inf)
    temperature = context.sampling.temperature
    rows = zip(tokens.tolist(), (logprobs / temperature).tolist(), positions, strict=True)
    for row, (named, scores, position) in enumerate(rows):
        least = _least_surviving(scores, context.sampling)
        count = bisect.bisect_right(scores, _HOPELESS - scores[0], key=operator.neg)
        noise = context.noise.gumbel_of_few(Stream.TARGET, position, named[:count])
        noisy = [score + more for score, more in zip(scores, noise, strict=False)]
        total = math.log(math.fsum(math.exp(score * temperature) for score in noisy))
        surviving = bisect.bisect_right(scores, -least, hi=count, key=operator.neg)
        order = sorted(range(surviving), key=lambda at: -noisy[at])
        ordered[row] = [*(named[at] for at in order), *named[surviving:]]
        claims[row, :surviving] = [noisy[at] * temperature - total for at in order]
    return ordered, claims


def _least_surviving(scores: Sequence[float], sampling: Sampling) -> float:
    """The least of some scores, the best first, that survives truncation; −inf where all do.

    See `core.sampling.Truncation`: tokens of equal scores survive together. Probabilities are those among these scores.
    """
    least = -math.inf
    if top_k := sampling.top_k_of(len(scores)):
        least = scores[top_k - 1]
    if sampling.min_p > 0.0:
        least = max(least, scores[0] + math.log(sampling.min_p))
    if sampling.top_p < 1.0:
        among = scores[: bisect.bisect_right(scores, -scores[top_k - 1], key=operator.neg)] if top_k else scores
        weights = [math.exp(score - scores[0]) for score in among]
        wanted, mass = sampling.top_p * math.fsum(weights), 0.0
        for score, weight in zip(among, weights, strict=True):
            mass += weight
            if mass >= wanted:
                return max(least, score)
    return least


def points_of(tokens: Tokens, logprobs: Scores, width: int, proposer: str) -> PointRows:
    """For each node its first `width` tokens as points, the best first; those that cannot be are left out."""
    return PointRows(tokens[:, :width].tolist(), logprobs[:, :width].tolist(), None, proposer)


Floats = np.ndarray[Any, np.dtype[np.float32 | np.float64]]
Source = TypeVar("Source")


class Likeliest(NamedTuple):
    """The likeliest tokens by one pass after R nodes: C of each, the likeliest first.

    Args:
        tokens: (R, C) the tokens.
        values: (R, C) their log-probabilities, or their logits; −inf, at the end of a row, where there is no token.
        logsumexp: (R,) what is to be taken from logits to make log-probabilities of them.
        logits: whether the values are logits.
    """

    tokens: Tokens
    values: Floats
    logsumexp: Floats
    logits: bool

    def only(self, row: int) -> Likeliest:
        """What it says after one node."""
        at = slice(row, row + 1)
        return Likeliest(self.tokens[at], self.values[at], self.logsumexp[at], self.logits)

    def named(self) -> Named:
        """The same as compiled code takes it: logits, to the bit where they had 32 bits to begin with."""
        return named_of(
            self.tokens, self.values if self.logits else self.values + self.logsumexp[:, None], self.logsumexp
        )


class LikeliestByNode(Generic[Source]):
    """The likeliest tokens by all passes over one tree, found by node."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[Callable[[], Likeliest], int, Source]] = {}
        self._last: tuple[Sequence[int], Callable[[], Likeliest]] | tuple[None, None] = (None, None)

    def __contains__(self, node: object) -> bool:
        return node in self._at

    def source(self, node: int) -> tuple[Source, int]:
        """The pass that read this node, and its row there."""
        _, row, source = self._at[node]
        return source, row

    def clear(self) -> None:
        self._at.clear()
        self._last = (None, None)

    def add(self, nodes: Sequence[int], said: Callable[[], Likeliest], source: Source) -> None:
        """Note what a pass says after some nodes. It is computed when it is asked for: draws do not need it."""
        said = cache(said)
        self._at.update([(node, (said, row, source)) for row, node in enumerate(nodes)])
        self._last = nodes, said

    def points(self, nodes: Sequence[int], width: int, proposer: str) -> PointRows:
        rows: slice | list[int] = slice(None)
        if nodes == self._last[0]:  # almost always
            said = self._last[1]()
        else:
            places = [self._at[node] for node in nodes]
            if any(each is not places[0][0] for each, _, _ in places):
                return joined([self.points([node], width, proposer) for node in nodes])
            said, rows = places[0][0](), [row for _, row, _ in places]
        logsumexp = said.logsumexp[rows].tolist() if said.logits else None
        return PointRows(said.tokens[rows, :width].tolist(), said.values[rows, :width].tolist(), logsumexp, proposer)

    def rows(self, nodes: Sequence[int]) -> Likeliest:
        """What was said after these nodes, of passes that say as much."""
        if nodes == self._last[0]:  # almost always
            return self._last[1]()
        places = [self._at[node] for node in nodes]
        said = places[0][0]()
        if all(each is places[0][0] for each, _, _ in places):
            rows = [row for _, row, _ in places]
            return Likeliest(said.tokens[rows], said.values[rows], said.logsumexp[rows], said.logits)
        tokens = np.stack([each().tokens[row] for each, row, _ in places])
        values = np.stack([each().values[row] for each, row, _ in places])
        return Likeliest(tokens, values, np.array([each().logsumexp[row] for each, row, _ in places]), said.logits)

    def best(self, node: int) -> tuple[int, float]:
        """The likeliest token after a node, and its log-probability."""
        which, row, _ = self._at[node]
        said = which()
        return int(said.tokens[row, 0]), float(said.values[row, 0]) - (
            float(said.logsumexp[row]) if said.logits else 0.0
        )

    def candidates(
        self, tree: TokenTree, nodes: Sequence[int], context: Context, logits: Callable[[int], Tensor]
    ) -> tuple[Tokens, Scores]:
        """For each of F nodes the likeliest tokens by the chat's penalties, and log-probabilities: (F, C) each.

        Under a bias any token may be among them: then all `logits` are looked at.
        """
        if context.sampling.bias:
            rows = torch.stack([context.penalised(tree, node, logits(node)) for node in nodes])
            highest, found = best_tokens(rows, min(self.rows(nodes).tokens.shape[1], rows.shape[1]))
            named, scores = to_host(found, highest.double() - rows.double().logsumexp(dim=1, keepdim=True))
            return named, scores
        said = self.rows(nodes)
        tokens, logsumexp = said.tokens, said.logsumexp.astype(np.float64)
        logprobs: Scores = said.values.astype(np.float64)
        if said.logits:
            logprobs -= logsumexp[:, None]
        if not context.sampling.penalised:
            return tokens, logprobs
        paths = [tree.path_tokens(node) for node in nodes]
        return penalised_candidates(tokens, logprobs, logsumexp, context.sampling, context.counts, paths)


def likeliest_of(reading: Reading, count: int, vocab_size: int) -> Likeliest:
    """The `count` likeliest tokens after each node that was read. One copy to the host.

    Args:
        vocab_size: tokens from this number on are rows of padding, which are never proposed.
    """
    named, highest, totals = reading.said.likeliest, reading.said.highest, reading.said.logsumexp
    if totals is None:
        totals = reading.logsumexp_after(reading.nodes)
    if named is not None and highest is not None and (named.shape[1] >= count or reading.said.tokens is not None):
        # numpy alone: after a pass torch's own code has left the caches, and every call of it takes tens of µs.
        whole, highest_of_all, logsumexp = to_host(named, highest, totals)
        tokens: Tokens = whole[:, :count]
        values: Floats = highest_of_all[:, :count]
    else:
        best, found = best_tokens(reading.logits, min(count, reading.logits.shape[1]))
        tokens, values, logsumexp = to_host(found, best.float(), totals)
    if reading.said.tokens is None and reading.logits.shape[1] > vocab_size:
        values = np.where(tokens < vocab_size, values, -np.inf)
        order = np.argsort(np.isneginf(values), axis=1, kind="stable")
        tokens, values = np.take_along_axis(tokens, order, 1), np.take_along_axis(values, order, 1)
    return Likeliest(tokens, values, logsumexp, logits=True)


def named_by(reading: Reading, count: int, vocab_size: int) -> Named:
    """The same as compiled code takes it: `count` tokens, or more where they are named already."""
    return as_named(reading.said, vocab_size) or likeliest_of(reading, count, vocab_size).named()


def points_below(
    said: LikeliestByNode[Any],
    tree: TokenTree,
    nodes: Sequence[int],
    width: int,
    context: Context,
    *,
    proposer: str,
    noisy: bool,
    logits: Callable[[int], Tensor],
) -> Proposal:
    """For each of these nodes, which were read, up to `width` points.

    Args:
        said: the likeliest tokens after every node that was read.
        noisy: whether points are ordered by the target's own noise, not by probability.
        logits: node → (V,) logits after it, from which points get q where the rule needs that, and which a bias shifts.
    """
    if not (noisy or context.sampling.shifts_logits):
        points: Proposal = said.points(nodes, width, proposer)
    else:
        tokens, logprobs = said.candidates(tree, nodes, context, logits)
        if noisy:
            positions = [context.position(tree, node) for node in nodes]
            tokens, logprobs = coupled(tokens, logprobs, positions, context)
        points = points_of(tokens, logprobs, width, proposer)
    if not context.wants_q:
        return points
    laws = (context.law_after(tree, node, logits(node)).dense(context.vocab_size) for node in nodes)
    return [[point._replace(q=q) for point in some] for q, some in zip(laws, points, strict=True)]


def for_frontier(frontier: Sequence[int], nodes: Sequence[int], guesses: Proposal) -> Proposal:
    """These guesses below some nodes of the frontier, in its order, and none below the others."""
    if len(nodes) == len(frontier):
        return guesses
    said = dict(zip(nodes, guesses, strict=True))
    return [said.get(node, ()) for node in frontier]


def penalised_candidates(
    tokens: Tokens,
    logprobs: Scores,
    logsumexp: Scores,
    sampling: Sampling,
    counts: Counts,
    paths: Sequence[Sequence[int]],
) -> tuple[Tokens, Scores]:
    """Candidates after bias and penalties, the likeliest first, and their log-probabilities.

    Both are assumed not to change tokens that are not candidates.

    Args:
        tokens, logprobs: (n, C) candidates, and their log-probabilities before penalties.
        logsumexp: (n,) what is added to a row's log-probabilities to make logits of them.
        counts: what the text holds.
        paths: n times the tokens drafted since the text ended, down to the node that the row follows.

    Returns:
        Two arrays (n, C).
    """
    logits = logprobs + logsumexp[:, None]
    for token, amount in sampling.bias:
        logits = np.where(tokens == token, logits + amount, logits)
    amounts = np.array([counts.often(row, path) for row, path in zip(tokens.tolist(), paths, strict=True)])
    changed = penalised_logits(logits, amounts, sampling) - logsumexp[:, None]
    mass = 1.0 + (np.exp(changed) - np.exp(logprobs)).sum(axis=1, keepdims=True)
    changed -= np.log(np.maximum(mass, 1e-9))
    order = np.argsort(-changed, axis=1, kind="stable")
    return np.take_along_axis(tokens, order, axis=1), np.take_along_axis(changed, order, axis=1)


def penalised_logits(logits: Scores, amounts: Scores, sampling: Sampling) -> Scores:
    """The logits after penalties.

    Args:
        logits: of any tokens, any shape.
        amounts: how often the text's reply and the path hold each token; −1 where not even the prompt does.
    """
    seen = logits
    if (factor := sampling.repetition_penalty) != 1.0:
        seen = np.where(seen > 0, seen / factor, seen * factor)
    taken = sampling.presence_penalty + sampling.frequency_penalty * amounts
    seen = np.where(amounts > 0, seen - taken, seen)
    return np.where(amounts < 0, logits, seen)
