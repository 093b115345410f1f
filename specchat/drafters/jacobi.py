"""Proposes what the target said after its own last guesses: a text iterated towards a fixed point, pass by pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from specchat.core.context import Context
from specchat.core.device_copy import picked, to_device, to_host
from specchat.core.reading import Reading
from specchat.core.request import LIKELIEST, ExtraRow, HeadNeeds
from specchat.core.round import Round
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.drafters.options import JacobiOptions
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import Scores, Tokens, coupled, penalised_candidates
from specchat.indexes.embedding_rows import EmbeddingRows
from specchat.indexes.running_estimates import LearntRates

_CANDIDATES = 16
"""How many of the likeliest tokens after a guess are considered for the next place."""


class _Said(NamedTuple):
    """What the target holds likely at some places: (n, C) tokens, the likeliest first, and their log-probabilities, and
    (n,) what makes logits of these."""

    tokens: Tokens
    logprobs: Scores
    logsumexp: Scores


class Jacobi(Drafter):
    """Keeps a guess for each of the next places; every pass replaces all of them by what the target says after them.

    Guesses that the target has said are proposed as nodes, at each place the likeliest first, or, above temperature 0,
    those that win with the target's own noise. The remaining guesses are extra rows behind them: guesses without a
    place in the tree, and the root's token where nothing was said yet. So the iteration goes on whatever the budget is.
    A guess is right at the latest when all guesses before it are; it saves a pass where it is right earlier.

    Reference: Santilli et al., Accelerating Transformer Inference for Translation via Parallel Decoding,
    arXiv:2305.10427. Differs: the line moves along with the text instead of standing until a block of it is done;
    several candidates for one place become siblings; above temperature 0 guesses are coupled with the target's draws;
    penalties are those of the text and the line up to the place.
    """

    needs: HeadNeeds = LIKELIEST

    def __init__(self, options: JacobiOptions, parts: Parts) -> None:
        self.proposer = parts.proposer
        self._embeddings = EmbeddingRows(parts.target.embed)
        self._places, self._named = options.window, min(_CANDIDATES, parts.vocab_size)
        self._rates = LearntRates()  # by place and rank
        self._noisy, self._scored = False, False  # whether noise, and whether log-probabilities decide about the order
        self._tree: TokenTree | None = None
        self._said: _Said | None = None  # what the last pass said for the first places
        self._line: list[list[int]] = []  # the candidates of these places, the best first
        self._extra_rows = 0

    def start(self, history: Sequence[int]) -> None:
        self._forget()
        self._said = None

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node on the line up to `width` candidates of the next place, and nothing for the others."""
        if self._tree is not tree:
            self._forget()
            self._tree, self._noisy = tree, not context.sampling.greedy
            self._scored = self._noisy or context.sampling.shifts_logits
            self._line = self._candidates(context)
        return [self._guesses(tree, node, width) for node in frontier]

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        """The rest of the line, behind the last node that follows it."""
        nodes = self._nodes(tree)
        rest = [candidates[0] for candidates in self._line[len(nodes) :]]
        fresh = max(self._places - len(nodes) - len(rest), 0 if rest else 1)  # the line never ends in the tree
        tokens = [*rest, *[tree.tokens[ROOT]] * fresh]
        self._extra_rows = len(tokens)
        parent, rows = (ROOT, *nodes)[-1], enumerate(self._embeddings.of(tokens))
        return [ExtraRow(parent, row, place - 1 if place else None) for place, row in rows]

    def observe(self, round: Round) -> None:
        """Count which guesses were right; what was said after the rest of the line is the next one."""
        for place, (token, candidates) in enumerate(zip(round.emitted, self._line, strict=False)):
            for rank, candidate in enumerate(candidates[:2]):
                self._rates.count((place, rank), candidate == token)
            if candidates[0] != token:
                break
        self._said = self._read(round)
        self._forget()

    def _forget(self) -> None:
        self._tree, self._line, self._extra_rows = None, [], 0

    def _nodes(self, tree: TokenTree) -> tuple[int, ...]:
        return tree.follow([candidates[0] for candidates in self._line])

    def _candidates(self, context: Context) -> list[list[int]]:
        """For each place that something was said about, the candidates in order."""
        if self._said is None:
            return []
        if context.sampling.shifts_logits:
            return self._penalised(self._said, context)
        tokens, logprobs, _ = self._said
        if self._noisy:
            positions = [len(context.history) + place for place in range(len(tokens))]
            tokens, _ = coupled(tokens, logprobs, positions, context)
        line: list[list[int]] = tokens.tolist()
        return line

    def _penalised(self, said: _Said, context: Context) -> list[list[int]]:
        """The candidates place by place: what stands before a place is penalised there."""
        line: list[list[int]] = []
        for place, row in enumerate(zip(*said, strict=True)):
            tokens, logprobs, logsumexp = (part[None] for part in row)
            path = [candidates[0] for candidates in line]
            tokens, logprobs = penalised_candidates(
                tokens, logprobs, logsumexp, context.sampling, context.counts, [path]
            )
            if self._noisy:
                tokens, _ = coupled(tokens, logprobs, [len(context.history) + place], context)
            line.append(tokens[0].tolist())
        return line

    def _guesses(self, tree: TokenTree, node: int, width: int) -> list[Guess]:
        place = tree.depths[node]
        if place >= len(self._line) or node not in (ROOT, *self._nodes(tree)):
            return []
        return [
            Guess(token, logprob=math.log(self._rate(place, rank)), proposer=self.proposer)
            for rank, token in enumerate(self._line[place][:width])
        ]

    def _rate(self, place: int, rank: int) -> float:
        """How often the candidate of this rank was right where the guesses before its place were."""
        learnt = min(rank, 1)
        return self._rates.rate((place, learnt), claimed=0.3 ** (1 + learnt)) * 0.5 ** (rank - learnt)

    def _read(self, round: Round) -> _Said | None:
        """What was said about the places behind the emitted tokens, after the line's nodes and extra rows there."""
        reading, nodes = round.reading, self._nodes(round.tree)
        standing = [node for node in (ROOT, *nodes) if node in reading.alive]
        behind = range(len(round.emitted), len(standing))
        rows = [standing[place] for place in behind]
        extra_rows: range = range(0)
        if (
            reading.extra_row_logits is not None
            and len(reading.extra_row_logits) == self._extra_rows
            and len(standing) > len(nodes)
        ):
            extra_rows = range(max(0, len(round.emitted) - len(standing)), self._extra_rows)
        return _likely(reading, rows, extra_rows, self._named, self._scored) if rows or extra_rows else None


def _likely(reading: Reading, nodes: Sequence[int], extra_rows: Sequence[int], count: int, scored: bool) -> _Said:
    """The target's likeliest tokens after nodes and then extra rows; log-probabilities only where they are needed."""
    best = [
        *(reading.best_after(nodes, count) if nodes else ()),
        *(reading.best_after_extra_rows(extra_rows, count) if extra_rows else ()),
    ]
    if not scored:
        return _Said(np.array(best), np.zeros((len(best), count)), np.zeros(len(best)))
    rows = [picked(reading.logits, [reading.row(node) for node in nodes])]
    if extra_rows:
        assert reading.extra_row_logits is not None, "they rode along"
        rows.append(picked(reading.extra_row_logits, extra_rows))
    logits = torch.cat(rows).float()
    scores = logits.gather(1, to_device(torch.tensor(best), logits.device))
    values, logsumexp = (part.astype(np.float64) for part in to_host(scores, torch.logsumexp(logits, dim=-1)))
    return _Said(np.array(best), values - logsumexp[:, None], logsumexp)
