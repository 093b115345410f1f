"""The target's token where the likeliest are known: the same that a draw among all would give, for a fraction of it."""

from __future__ import annotations

from torch import Tensor

from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Sampling, law
from specchat.core.top_tokens import best_token


def draw_from_top_k(logits: Tensor, likeliest: Tensor, sampling: Sampling, noise: Noise, position: int) -> int:
    """The token that `law(logits, sampling).draw(noise, Stream.TARGET, position)` gives.

    Truncation leaves few tokens, almost always some of the likeliest. Without it any token may win, but one that is
    none of the likeliest needs more noise than the difference between the best noisy score among them and the score of
    the last of them; which tokens have that much can be told without computing anybody's noise.

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
    """The winner among the likeliest, or whoever beats it by noise alone.

    Args:
        winner: its token and noisy score.
        last: the score that no other token exceeds.
    """
    token, score = winner
    lucky = noise.above(Stream.TARGET, position, logits.numel(), score - float(last))
    if not lucky.numel():
        return token
    noisy = (logits[lucky].float() / temperature).double() + noise.gumbel(Stream.TARGET, position, lucky)
    best = best_token(noisy)
    return int(lucky[best]) if float(noisy[best]) > score else token
