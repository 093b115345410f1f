"""How much a check tries: how many texts, tokens and samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Args:
        prompts: whose greedy texts are compared.
        tokens: of each greedy text.
        seeds: how many sampled texts are compared.
        sampled_tokens: of each sampled text.
        twin_tokens: drafted for by the target itself.
        adversary_tokens: written against a drafter that is always wrong.
        samples: of the first two tokens, for the test of the law.
    """

    prompts: int
    tokens: int
    seeds: int
    sampled_tokens: int
    twin_tokens: int
    adversary_tokens: int
    samples: int


EFFORTS = {
    # Shorter texts of the scripted pair repeat nothing, so that no guess would be right.
    "small": Effort(prompts=2, tokens=64, seeds=1, sampled_tokens=64, twin_tokens=24, adversary_tokens=16, samples=200),
    "full": Effort(prompts=8, tokens=96, seeds=6, sampled_tokens=64, twin_tokens=96, adversary_tokens=64, samples=1200),
}
"""By the names that `--budget` takes."""
