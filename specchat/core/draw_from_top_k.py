"""The target's token drawn from its top k: the same token that a draw from the whole vocabulary gives, but faster."""

from __future__ import annotations

from torch import Tensor

from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Sampling, law
from specchat.core.top_tokens import best_token


def draw_from_top_k(logits: Tensor, likeliest: Tensor, sampling: Sampling, noise: Noise, position: int) -> int:
    """The token that `law(logits, sampling).draw(noise, Stream.TARGET, position)` gives.

    Truncation leaves few tokens, almost always among the top k. Without truncation any token may win, but a token
    outside the top k needs more noise than the best noisy score within it minus the lowest score within it. Which
    tokens have that much noise can be found without computing the noise of all.

    Args:
        logits: (V,) raw; no penalty is in force, and the temperature is above 0.
        likeliest: (C,) int64, tokens with the highest logits, best first.
    """
    if sampling.truncates(logits.numel()):
        return law(logits, sampling, likeliest).draw(noise, Stream.TARGET, position)
    scores = logits[likeliest].float() / sampling.temperature
    noisy = scores.double() + noise.gumbel(Stream.TARGET, position, likeliest)
    best = best_token(noisy)
    winner = int(likeliest[best]), float(noisy[best])
    return _best_of_all(logits, sampling.temperature, noise, position, winner, scores[-1])


def _best_of_all(
    logits: Tensor, temperature: float, noise: Noise, position: int, winner: tuple[int, float], last: Tensor
) -> int:
    """The winner of the top k, or a token outside it whose noise makes it win.

    Args:
        winner: its token and noisy score.
        last: the score that no other token exceeds.
    """
    token, score = winner
    beyond = noise.above(Stream.TARGET, position, logits.numel(), score - float(last))
    if not beyond.numel():
        return token
    noisy = (logits[beyond].float() / temperature).double() + noise.gumbel(Stream.TARGET, position, beyond)
    best = best_token(noisy)
    return int(beyond[best]) if float(noisy[best]) > score else token
