"""From raw logits to the law the target really samples from, and one draw from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.core.best import best_token, best_tokens
from specchat.core.noise import Noise, Stream

HEAD = 1024
"""How many of the most likely tokens top-p sorts first; almost always they hold the nucleus."""


@dataclass(frozen=True)
class Sampling:
    """How the target samples. The order is fixed: penalties, temperature, top-k, top-p, min-p."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True)
class Law:
    """A distribution over the tokens that survived truncation.

    Args:
        ids: (C,) int64, or None where every token of the vocabulary survived, in order.
        logprobs: (C,) float64, normalised.
    """

    ids: Tensor | None
    logprobs: Tensor

    def draw(self, noise: Noise, stream: Stream, position: int, salt: tuple[int, ...] = ()) -> int:
        """One token by Gumbel-max. Synchronises with the device."""
        return int(self.best(1, noise, stream, position, salt)[0])

    def best(self, count: int, noise: Noise, stream: Stream, position: int, salt: tuple[int, ...] = ()) -> Tensor:
        """(≤ count,) token ids with the highest noisy log-probability, best first.

        The first is a draw from the law; all of them are draws without replacement.
        Reference: Kool et al., Stochastic Beams and Where to Find Them, arXiv:1903.06059.
        """
        ids = self.all_ids()
        count = min(count, ids.numel())
        if ids.numel() == 1:
            return ids
        scores = self.logprobs + noise.gumbel(stream, position, ids, salt)
        if count == 1:  # ties go to the first, as in a plain pass; topk promises nothing
            return ids[best_token(scores)].unsqueeze(0)
        return ids[scores.topk(count).indices]

    def all_ids(self) -> Tensor:
        """(C,) int64, spelled out."""
        if self.ids is not None:
            return self.ids
        return torch.arange(self.logprobs.numel(), device=self.logprobs.device)

    def dense(self, vocab_size: int) -> Tensor:
        """(V,) float64 probabilities, zero outside the truncation."""
        p = torch.zeros(vocab_size, dtype=torch.float64, device=self.logprobs.device)
        p[self.all_ids()] = self.logprobs.exp()
        return p


@dataclass
class Counts:
    """Which tokens occurred, and how often in the reply: what penalties look at. Grows with the text."""

    prompt: frozenset[int] = frozenset()
    reply: Counter[int] = field(default_factory=Counter)


def penalise(logits: Tensor, sampling: Sampling, counts: Counts, path: Sequence[int] = ()) -> Tensor:
    """Logits after penalties at a node: history plus the tokens from the root to the node, the node included.

    Repetition looks at prompt and reply, presence and frequency at the reply. A rejected draft is on no
    accepted node's path, so it is never seen.

    Args:
        logits: (V,) raw.
        path: tokens drafted since the history ended, down to the node.

    Returns:
        (V,) float32, a new tensor unless no penalty is active.
    """
    if not sampling.penalised:
        return logits.float()
    logits = logits.float().clone()
    reply = counts.reply + Counter(path)
    if sampling.repetition_penalty != 1.0:
        ids = torch.tensor(sorted(counts.prompt | reply.keys()), dtype=torch.int64, device=logits.device)
        seen = logits[ids]
        factor = sampling.repetition_penalty
        logits[ids] = torch.where(seen > 0, seen / factor, seen * factor)
    if reply:
        ids, amounts = _counted(reply, logits.device)
        logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * amounts
    return logits


def law(logits: Tensor, sampling: Sampling) -> Law:
    """The processed law of (V,) penalised float32 logits. Greedy is the point at the largest logit."""
    if sampling.greedy:
        best = torch.tensor([best_token(logits)], device=logits.device)
        return Law(best, torch.zeros(1, dtype=torch.float64, device=logits.device))
    ids: Tensor | None = None
    scores = logits / sampling.temperature
    if 0 < sampling.top_k < scores.numel():
        scores, ids = (found[0] for found in best_tokens(scores[None], sampling.top_k))
    if sampling.top_p < 1.0:
        scores, ids = _nucleus(scores, ids, sampling.top_p)
    if sampling.min_p > 0.0:
        keep = scores >= scores.max() + math.log(sampling.min_p)
        ids = torch.nonzero(keep).squeeze(1) if ids is None else ids[keep]
        scores = scores[keep]
    return Law(ids, torch.log_softmax(scores.double(), dim=-1))


def _nucleus(scores: Tensor, ids: Tensor | None, top_p: float) -> tuple[Tensor, Tensor]:
    """The smallest set of most likely tokens with probability `top_p` or more; the most likely always stays."""
    total = torch.logsumexp(scores.double(), dim=-1)
    for size in (min(HEAD, scores.numel()), min(16 * HEAD, scores.numel()), scores.numel()):
        ordered, places = scores.topk(size)  # sorted, most likely first
        before = (ordered.double() - total).exp().cumsum(dim=-1)
        if float(before[-1]) >= top_p or size == scores.numel():
            break
    count = 1 + int((before[:-1] < top_p).sum())
    places = places[:count]
    return ordered[:count], places if ids is None else ids[places]


def _counted(counter: Mapping[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    ids = torch.tensor(list(counter.keys()), dtype=torch.int64, device=device)
    return ids, torch.tensor(list(counter.values()), dtype=torch.float32, device=device)
