"""The target's token after every node of a tree, drawn in one computation on the logits' device, with one copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.device_copy import to_device
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Counts, Sampling, looked_at, total_of
from specchat.core.top_tokens import best_tokens
from specchat.core.truncation import truncate


def draw_batch(
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
        n tokens; None for a row whose surviving tokens are not all among the likeliest that were looked at, or whose
        scores are no finite numbers, which is then to be drawn by itself.
    """
    if sampling.by_logits:
        return _highest(logits)
    scores = penalise_batch(logits, sampling, counts, paths)
    if sampling.greedy:
        return _highest(scores)
    scores.div_(sampling.temperature)
    vocab_size = scores.shape[1]
    ids: Tensor | None = None
    enough = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    if sampling.truncates(vocab_size):
        best, best_ids = best_tokens(scores, looked_at(sampling, vocab_size))
        found = truncate(best, sampling, vocab_size, lambda: total_of(scores))
        if best.shape[1] > 1:
            scores, ids = best, best_ids
            enough = found.known & ((best[:, -1] < found.least[:, 0]) | (best.shape[1] == vocab_size))
        scores = scores.masked_fill(scores < found.least, -torch.inf)
    if ids is None:
        ids = torch.arange(scores.shape[1], device=scores.device).expand(len(scores), -1)
    noisy = torch.log_softmax(scores.double(), dim=-1) + noise.gumbels(Stream.TARGET, positions, ids)
    highest, places = noisy.max(dim=-1)
    drawn = ids.gather(1, places[:, None])[:, 0]
    return _where(enough & (highest < torch.inf), drawn)


def _highest(scores: Tensor) -> list[int | None]:
    highest, tokens = scores.max(dim=-1)
    return _where(highest < torch.inf, tokens)


def _where(sure: Tensor, tokens: Tensor) -> list[int | None]:
    return [token if token >= 0 else None for token in torch.where(sure, tokens, -1).tolist()]


def penalise_batch(logits: Tensor, sampling: Sampling, counts: Counts, paths: Sequence[Sequence[int]]) -> Tensor:
    """(n, V) float32 logits after penalties, a new tensor; each row's own path is part of what was said."""
    if not sampling.penalised:
        return logits.to(torch.float32, copy=True)
    device, vocab_size = logits.device, logits.shape[1]
    ids, often = counts.seen((), device)
    amounts = torch.zeros(vocab_size, device=device).index_copy_(0, ids, often).expand_as(logits).clone()
    places = [row * vocab_size + token for row, path in enumerate(paths) for token in path]
    ones = torch.ones(len(places), device=device)
    amounts.view(-1).index_add_(0, to_device(torch.tensor(places, dtype=torch.int64), device), ones)
    replied = amounts > 0
    scores = logits.to(torch.float32)
    factor = sampling.repetition_penalty
    if factor != 1.0:
        text = torch.zeros(vocab_size, dtype=torch.bool, device=device).index_fill_(0, ids, True)
        scores = torch.where(replied | text, torch.where(scores > 0, scores / factor, scores * factor), scores)
    taken = sampling.presence_penalty + sampling.frequency_penalty * amounts
    return torch.where(replied, scores - taken, scores)
