"""The target's token after every node of a tree, drawn in one computation where the logits lie, and copied once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specchat.core.best import best_tokens
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import HEAD, Counts, Sampling
from specchat.core.transfer import sent


def draw_each(
    logits: Tensor,
    paths: Sequence[Sequence[int]],
    positions: Sequence[int],
    sampling: Sampling,
    counts: Counts,
    noise: Noise,
) -> list[int | None]:
    """One token per row, as `law(penalise(…)).draw(…)` gives them row by row with the target stream's noise.

    Nothing here waits for the device but the copy at the end.

    Args:
        logits: (n, V) raw.
        paths: for each row, the tokens drafted down to its node.
        positions: for each row, the index in the text of the token drawn.

    Returns:
        n tokens; None for a row whose nucleus does not lie among its HEAD likeliest tokens, which is then to be
        drawn by itself.
    """
    if sampling.greedy and not sampling.penalised:
        return list(logits.argmax(dim=-1).tolist())
    scores = penalise_each(logits, sampling, counts, paths)
    if sampling.greedy:
        return list(scores.argmax(dim=-1).tolist())
    scores.div_(sampling.temperature)
    ids: Tensor | None = None
    enough = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    if 0 < sampling.top_k < scores.shape[1]:
        scores, ids = best_tokens(scores, sampling.top_k)
    if sampling.top_p < 1.0:
        scores, ids, enough = _nuclei(scores, ids, sampling.top_p)
    if sampling.min_p > 0.0:
        floor = scores.amax(dim=-1, keepdim=True) + math.log(sampling.min_p)
        scores = scores.masked_fill(scores < floor, -torch.inf)
    if ids is None:
        ids = torch.arange(scores.shape[1], device=scores.device).expand(len(scores), -1)
    noisy = torch.log_softmax(scores.double(), dim=-1) + noise.gumbels(Stream.TARGET, positions, ids)
    drawn = ids.gather(1, noisy.argmax(dim=-1, keepdim=True))[:, 0]
    return [token if token >= 0 else None for token in torch.where(enough, drawn, -1).tolist()]


def penalise_each(logits: Tensor, sampling: Sampling, counts: Counts, paths: Sequence[Sequence[int]]) -> Tensor:
    """(n, V) float32 logits after penalties, a new tensor; each row's own path is part of what was said."""
    if not sampling.penalised:
        return logits.to(torch.float32, copy=True)
    device, vocab_size = logits.device, logits.shape[1]
    said = torch.zeros(vocab_size, device=device)
    often = sent(torch.tensor([*counts.reply.values()], dtype=torch.float32), device)
    said.index_copy_(0, _ids(counts.reply, device), often)
    amounts = said.expand_as(logits).clone()
    places = [row * vocab_size + token for row, path in enumerate(paths) for token in path]
    ones = torch.ones(len(places), device=device)
    amounts.view(-1).index_add_(0, sent(torch.tensor(places, dtype=torch.int64), device), ones)
    replied = amounts > 0
    scores = logits.to(torch.float32)
    factor = sampling.repetition_penalty
    if factor != 1.0:
        prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        prompt.index_fill_(0, _ids(counts.prompt, device), True)
        scores = torch.where(replied | prompt, torch.where(scores > 0, scores / factor, scores * factor), scores)
    taken = sampling.presence_penalty + sampling.frequency_penalty * amounts
    return torch.where(replied, scores - taken, scores)


def _nuclei(scores: Tensor, ids: Tensor | None, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's likeliest tokens, those beyond its nucleus at −∞; and whether the whole nucleus is among them.

    Returns:
        (n, C) scores, (n, C) ids, (n,) bool.
    """
    total = torch.logsumexp(scores.double(), dim=-1, keepdim=True)
    size = min(HEAD, scores.shape[1])
    ordered, places = scores.topk(size, dim=-1)
    mass = (ordered.double() - total).exp().cumsum(dim=-1)
    enough = (mass[:, -1] >= top_p) | (size == scores.shape[1])
    beyond = torch.cat([torch.zeros_like(mass[:, :1]), mass[:, :-1]], dim=-1) >= top_p
    beyond[:, 0] = False  # the most likely always stays
    return ordered.masked_fill(beyond, -torch.inf), places if ids is None else ids.gather(1, places), enough


def _ids(tokens: Iterable[int], device: torch.device) -> Tensor:
    return sent(torch.tensor([*tokens], dtype=torch.int64), device)
