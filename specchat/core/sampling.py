"""From raw logits to the distribution the target samples from: bias, penalties, temperature, top-k, top-p, min-p."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.device_copy import to_device
from specchat.core.noise import Noise, Stream
from specchat.errors import NotNumbers

BAN = -100.0
"""A bias that bans a token; logits differ by less."""


@dataclass(frozen=True)
class Sampling:
    """How the target samples. The order is fixed: bias, penalties, temperature, top-k, top-p, min-p.

    Ties are kept: a token as likely as the last one that survives truncation survives too.

    Args:
        bias: tokens, and what is added to the logit of each.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()

    @cached_property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken always."""
        return self.temperature == 0.0

    def top_k_of(self, vocab_size: int) -> int:
        """How many tokens top-k leaves of a vocabulary; 0 where it leaves all."""
        return self.top_k if self.top_k < vocab_size else 0

    def truncates(self, vocab_size: int) -> bool:
        """Whether any token of a vocabulary may be excluded."""
        return self.top_k_of(vocab_size) > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @cached_property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @cached_property
    def shifts_logits(self) -> bool:
        """Whether bias or penalties change logits."""
        return self.penalised or bool(self.bias)

    @cached_property
    def banned(self) -> frozenset[int]:
        """Tokens that the bias makes so unlikely that none is worth a guess."""
        return frozenset(token for token, amount in self.bias if amount <= BAN)

    @cached_property
    def by_logits(self) -> bool:
        """Whether the token with the highest logit is always taken: greedy, with neither bias nor penalties."""
        return self.greedy and not self.shifts_logits

    @cached_property
    def without_bias(self) -> Sampling:
        """The same for logits that have the bias already."""
        return replace(self, bias=()) if self.bias else self


class Counts:
    """Which tokens occurred, and how often in the reply: what penalties look at. Grows with the text.

    Attributes:
        tokens: how many tokens of the text are counted.
    """

    def __init__(self, prompt: Sequence[int] = (), reply: Sequence[int] = ()) -> None:
        self.tokens = 0
        self._ids = array("q")  # the different tokens, in the order in which they came
        self._often = array("f")  # by token, −1 where not even the prompt holds it
        self.add_prompt(prompt)
        self.add(reply)

    def add_prompt(self, tokens: Sequence[int]) -> None:
        """Count tokens of the prompt: they occur, but not in the reply."""
        self._count(tokens, 0.0)

    def add(self, tokens: Sequence[int]) -> None:
        self._count(tokens, 1.0)

    def _count(self, tokens: Sequence[int], more: float) -> None:
        self.tokens += len(tokens)
        often, known = self._often, len(self._often)
        if tokens and (highest := max(tokens)) >= known:
            often.extend([-1.0] * (1 + highest - known))
        for token in tokens:
            before = often[token] if token >= 0 else -1.0
            if before < 0.0:
                self._ids.append(token)
                before = 0.0
            if token >= 0:  # torch refuses others by name, where it looks them up
                often[token] = before + more

    def often(self, tokens: Sequence[int], path: Sequence[int] = ()) -> list[float]:
        """How often reply and path hold each of these tokens; −1 for those that not even the prompt holds."""
        often, known = self._often, len(self._often)
        found = [often[token] if 0 <= token < known else -1.0 for token in tokens]
        for token in path:
            if token in tokens:
                at = tokens.index(token)
                found[at] = max(found[at], 0.0) + 1.0
        return found

    def addresses(self) -> tuple[int, int, int, int]:
        """Address of the different tokens of the text, int64, and their number; address of how often the reply holds
        each token, float32, −1 where not even the prompt does, and the number of tokens in that table.

        Valid until tokens are added.
        """
        return *self._ids.buffer_info(), *self._often.buffer_info()

    def seen(self, path: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """The different tokens of text and path, and how often each is in reply and path: (n,) int64, (n,) float32."""
        both = Counts()
        both._ids, both._often = self._ids[:], self._often[:]
        both.add(path)
        if not both._ids:
            return torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, device=device)
        tokens = torch.frombuffer(both._ids, dtype=torch.int64)
        often = torch.frombuffer(both._often or array("f", [0.0]), dtype=torch.float32)[tokens]
        return to_device(tokens, device), to_device(often, device)


def biased(logits: Tensor, sampling: Sampling) -> Tensor:
    """(…, V) float32 logits with the bias added; a new tensor where there is any."""
    known = [(token, amount) for token, amount in sampling.bias if token < logits.shape[-1]]
    if not known:
        return logits.float()
    tokens, amounts = zip(*known, strict=True)
    ids = to_device(torch.tensor(tokens, dtype=torch.int64), logits.device)
    added = to_device(torch.tensor(amounts, dtype=torch.float32), logits.device)
    return logits.float().index_add(-1, ids, added.expand(*logits.shape[:-1], -1))


def penalise(logits: Tensor, sampling: Sampling, counts: Counts, path: Sequence[int] = ()) -> Tensor:
    """Logits after bias and penalties at a node: history plus the tokens from the root to the node, the node included.

    Repetition looks at prompt and reply, presence and frequency at the reply. A rejected draft is on no
    accepted node's path, so it is never seen.

    Args:
        logits: (V,) raw.
        path: tokens drafted since the history ended, down to the node.

    Returns:
        (V,) float32, a new tensor unless neither is active.
    """
    logits = biased(logits, sampling)
    if not sampling.penalised:
        return logits
    ids, amounts = counts.seen(path, logits.device)
    seen = logits[ids].float()
    if (factor := sampling.repetition_penalty) != 1.0:
        seen = torch.where(seen > 0, seen / factor, seen * factor)
    if sampling.presence_penalty or sampling.frequency_penalty:
        taken = sampling.presence_penalty + sampling.frequency_penalty * amounts
        seen = torch.where(amounts > 0, seen - taken, seen)
    return logits.float().index_copy(0, ids, seen)


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
        ids = self.all_ids()
        if ids.numel() == 1:
            return int(ids[0])
        scores = self.logprobs + noise.gumbel(stream, position, ids, salt)
        token = best_token(scores)  # ties go to the first, as in a plain pass; topk promises nothing
        return token if self.ids is None else int(ids[token])

    def best(self, count: int, noise: Noise, stream: Stream, position: int, salt: tuple[int, ...] = ()) -> Tensor:
        """(≤ count,) token ids with the highest noisy log-probability, best first.

        The first is a draw from the law; all of them are draws without replacement.
        Reference: Kool et al., Stochastic Beams and Where to Find Them, arXiv:1903.06059.
        """
        ids = self.all_ids()
        count = min(count, ids.numel())
        if count == 1:
            return ids.new_tensor([self.draw(noise, stream, position, salt)])
        scores = self.logprobs + noise.gumbel(stream, position, ids, salt)
        return ids[scores.topk(count).indices]

    def all_ids(self) -> Tensor:
        """(C,) int64, spelled out."""
        if self.ids is not None:
            return self.ids
        return torch.arange(self.logprobs.numel(), device=self.logprobs.device)

    def dense(self, vocab_size: int) -> Tensor:
        """(V,) float64 probabilities, zero outside the truncation; a new tensor."""
        if self.ids is None and self.logprobs.numel() == vocab_size:
            return self.logprobs.exp()  # sooner than writing to every place
        p = torch.zeros(vocab_size, dtype=torch.float64, device=self.logprobs.device)
        p[self.all_ids()] = self.logprobs.exp()
        return p


def law(logits: Tensor, sampling: Sampling) -> Law:
    """The processed law of (V,) penalised logits. Greedy is the point at the largest logit.

    Raises:
        NotNumbers: the logits are none, where that is seen; a draw sees it everywhere.
    """
    if sampling.greedy:
        best = torch.tensor([best_token(logits)], device=logits.device)
        return Law(best, torch.zeros(1, dtype=torch.float64, device=logits.device))
    vocab_size = logits.numel()
    if not sampling.truncates(vocab_size):
        return Law(None, torch.log_softmax((logits.float() / sampling.temperature).double(), dim=-1))
    for ids in _wider_and_wider(logits, sampling):
        best = logits[ids].float() / sampling.temperature
        found = truncate(best[None], sampling, vocab_size, lambda: total_of(logits.float() / sampling.temperature))
        if bool(found.known):
            break
    if not math.isfinite(float(best[0])):
        raise NotNumbers
    least = found.least[0]
    kept = int((best >= least).sum())
    if kept == len(best) < vocab_size:  # others may equal the last, or min-p keeps more than were looked at
        best = logits.float() / sampling.temperature
        ids = torch.nonzero(best >= least).squeeze(1)
        best = best[ids]
    else:
        ids, best = ids[:kept], best[:kept]
    return Law(ids, torch.log_softmax(best.double(), dim=-1))


HEAD = 1024
"""How many of the most likely tokens top-p sorts first; almost always they hold the nucleus."""

_SPARE = 14
"""How many tokens are looked at beyond top-k, for those that equal the last. With a top-k of 50 that makes 64."""


def looked_at(sampling: Sampling, vocab_size: int) -> int:
    """How many of the likeliest tokens almost always suffice to know which survive."""
    top_k = sampling.top_k_of(vocab_size)
    if top_k:
        return min(top_k + _SPARE, vocab_size)
    return min(HEAD if sampling.top_p < 1.0 else 1, vocab_size)


def total_of(scores: Tensor) -> Tensor:
    """(…, 1) logarithm of the sum of the exponentials of (…, V) float32 scores: the same bits for all who ask."""
    return torch.logsumexp(scores, dim=-1, keepdim=True)


def _wider_and_wider(logits: Tensor, sampling: Sampling) -> Iterator[Tensor]:
    """Ever more of the likeliest tokens, in the end all: (C,) int64, best first."""
    for size in (looked_at(sampling, logits.numel()), 16 * HEAD, logits.numel()):
        yield best_tokens(logits[None], min(size, logits.numel()))[1][0]


@dataclass(frozen=True)
class Truncation:
    """Surviving tokens of n rows of scores. Tokens of equal scores survive together, so their order decides nothing.

    Args:
        least: (n, 1) a token survives if its score is this or more.
        known: (n,) bool, whether the tokens looked at were enough to tell.
    """

    least: Tensor
    known: Tensor


def truncate(best: Tensor, sampling: Sampling, vocab_size: int, total: Callable[[], Tensor]) -> Truncation:
    """Truncate rows of which only the highest scores are looked at. Does not wait for the device.

    Args:
        best: (n, C) the highest scores (logits over temperature), best first; C may be V.
        total: () → (n, 1) logarithm of the sum of the exponentials of all V scores; asked for only where top-p
            needs it.
    """
    top_k, count = sampling.top_k_of(vocab_size), best.shape[1]
    known = torch.ones(len(best), dtype=torch.bool, device=best.device)
    if top_k > count:
        return Truncation(torch.full_like(best[:, :1], -torch.inf), ~known)
    least = best[:, top_k - 1 : top_k] if top_k else None
    if sampling.top_p < 1.0:
        if least is not None:
            known = best[:, -1] < least[:, 0]  # else there may be more that equal the last
            mass_of_all = torch.logsumexp(best.masked_fill(best < least, -torch.inf), dim=-1, keepdim=True)
        else:
            mass_of_all = total()
        mass = (best.double() - mass_of_all).exp().cumsum(dim=-1)
        known = known & (mass[:, -1] >= sampling.top_p) | (count == vocab_size)
        least = _higher(best.gather(1, (mass[:, :-1] < sampling.top_p).sum(dim=-1, keepdim=True)), least)
    if sampling.min_p > 0.0:
        least = _higher(best[:, :1] + math.log(sampling.min_p), least)
    assert least is not None, "asked for only where something truncates"
    return Truncation(least, known)


def _higher(first: Tensor, second: Tensor | None) -> Tensor:
    return first if second is None else torch.maximum(first, second)


def best_token(scores: Tensor) -> int:
    """The token with the highest of (V,) scores; of equals the first. Synchronises with the device.

    Raises:
        NotNumbers: a score is none, or infinite, or there is no score: of such the highest is no finite number either.
    """
    if not scores.numel():
        raise NotNumbers
    if scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.float64):
        row = scores.numpy()
        token = int(row.argmax())  # 3 µs for 49 152 tokens, where torch takes 65
        highest = row[token]
    else:
        token = int(scores.argmax())
        highest = float(scores[token])
    if not math.isfinite(highest):
        raise NotNumbers
    return token


_CHUNK = 64
_LARGE = 64 * _CHUNK


def best_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of (n, V) scores, best first, and their tokens: two tensors (n, count).

    They lie in the `count` chunks with the highest maxima, so only those are searched: a third of the time.
    """
    if scores.device.type != "cpu" or scores.shape[1] < _LARGE or count > _CHUNK:
        found = scores.topk(min(count, scores.shape[1]), dim=1)
        return found.values, found.indices
    padded = F.pad(scores, (0, -scores.shape[1] % _CHUNK), value=-torch.inf)
    chunks = padded.view(len(scores), -1, _CHUNK)
    chosen = chunks.amax(dim=2).topk(count, dim=1).indices
    near = chunks.gather(1, chosen[:, :, None].expand(-1, -1, _CHUNK)).flatten(1).topk(count, dim=1)
    tokens = chosen.gather(1, near.indices // _CHUNK) * _CHUNK + near.indices % _CHUNK
    return near.values, tokens
