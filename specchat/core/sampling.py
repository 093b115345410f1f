"""From raw logits to the distribution the target samples from, and a draw from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.core.noise import Noise, Stream
from specchat.core.top_tokens import best_token, best_tokens
from specchat.core.truncation import truncate

HEAD = 1024
"""How many of the most likely tokens top-p sorts first; almost always they hold the nucleus."""

_SPARE = 14
"""So many tokens are looked at beyond top-k, for those that equal the last. With a top-k of 50 that makes 64."""


@dataclass(frozen=True)
class Sampling:
    """How the target samples. The order is fixed: penalties, temperature, top-k, top-p, min-p.

    A token that is as likely as the last one that survives survives too.
    """

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

    def top_k_of(self, vocab_size: int) -> int:
        """How many tokens top-k leaves of a vocabulary; 0 where it leaves all."""
        return self.top_k if self.top_k < vocab_size else 0

    def truncates(self, vocab_size: int) -> bool:
        """Whether any token of a vocabulary may be excluded."""
        return self.top_k_of(vocab_size) > 0 or self.top_p < 1.0 or self.min_p > 0.0

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

    @classmethod
    def of(cls, p: Tensor) -> Law:
        """The law of (V,) float64 probabilities."""
        ids = torch.nonzero(p).squeeze(1)
        return cls(ids, p[ids].log())

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


def law(logits: Tensor, sampling: Sampling, likeliest: Tensor | None = None) -> Law:
    """The processed law of (V,) penalised logits. Greedy is the point at the largest logit.

    Args:
        likeliest: (C,) int64, the tokens with the highest logits, best first, where they are known; looked at before
            any others are searched for.
    """
    if sampling.greedy:
        best = torch.tensor([best_token(logits)], device=logits.device)
        return Law(best, torch.zeros(1, dtype=torch.float64, device=logits.device))
    vocab_size = logits.numel()
    if not sampling.truncates(vocab_size):
        return Law(None, torch.log_softmax((logits.float() / sampling.temperature).double(), dim=-1))
    for ids in _wider_and_wider(logits, sampling, likeliest):
        best = logits[ids].float() / sampling.temperature
        found = truncate(best[None], sampling, vocab_size, lambda: total_of(logits.float() / sampling.temperature))
        if bool(found.known):
            break
    least = found.least[0]
    kept = int((best >= least).sum())
    if kept == len(best) < vocab_size:  # others may equal the last, or min-p keeps more than were looked at
        best = logits.float() / sampling.temperature
        ids = torch.nonzero(best >= least).squeeze(1)
        best = best[ids]
    else:
        ids, best = ids[:kept], best[:kept]
    return Law(ids, torch.log_softmax(best.double(), dim=-1))


def looked_at(sampling: Sampling, vocab_size: int) -> int:
    """How many of the likeliest tokens tell almost always what survives."""
    top_k = sampling.top_k_of(vocab_size)
    if top_k:
        return min(top_k + _SPARE, vocab_size)
    return min(HEAD if sampling.top_p < 1.0 else 1, vocab_size)


def total_of(scores: Tensor) -> Tensor:
    """(…, 1) logarithm of the sum of the exponentials of (…, V) float32 scores: the same bits for all who ask."""
    return torch.logsumexp(scores, dim=-1, keepdim=True)


def _wider_and_wider(logits: Tensor, sampling: Sampling, likeliest: Tensor | None) -> Iterator[Tensor]:
    """Ever more of the likeliest tokens, in the end all: (C,) int64, best first."""
    if likeliest is not None:
        yield likeliest
    for size in (looked_at(sampling, logits.numel()), 16 * HEAD, logits.numel()):
        yield best_tokens(logits[None], min(size, logits.numel()))[1][0]


def _counted(counter: Mapping[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    ids = torch.tensor(list(counter.keys()), dtype=torch.int64, device=device)
    return ids, torch.tensor(list(counter.values()), dtype=torch.float32, device=device)
