"""What training a drafter takes of disk and time, told from a target's size before anything is loaded. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LIKELIEST = 32
"""How many of the target's likeliest tokens are kept at every place, with the weight of all others together."""

TAPS = 4
"""Layers whose states are kept: an early one, the middle, a late one and the last."""

TOKENS_PER_REPLY_TOKEN = 1.7
"""Tokens read for every token of a reply: chat format and prompt come before it. Measured on smol."""

EPOCHS = 3.0
"""How often every text is learnt from."""

MASK_EPOCHS = 0.25
"""The same of what runs through the whole target: a quarter of the texts teaches a few numbers what they can learn."""

LEAST_TEXTS, _MOST_TEXTS, _WIDTH_OF_A_TEXT = 4, 32, 128

_MATRIX_SHARE = 0.5
"""What Muon takes of learning where it was measured, with the fewest texts in a step."""

_MEASURED_PARAMETERS, _MEASURED_WIDTH = 134_515_008, 576
_WRITTEN_PER_S, _READ_PER_S = 510.0, 1500.0
TOKENS_LEARNT_PER_S: Mapping[str, float] = {
    "hydra": 1600.0,
    "eagle": 800.0,
    "medusa": 1600.0,
    "amphista": 800.0,
    "falcon": 800.0,
    "parallel_spec": 800.0,
    "clover": 800.0,
    "draft_model": 720.0,
    "prompt_tokens": 260.0,
    "mtp": 250.0,
}
"""Tokens a second of one thread with SmolLM2-135M; docs/training.md says on which machine. Those of hydra, draft_model,
prompt_tokens and mtp are measured; eagle's is 0.6 of what it was with AdamW, as hydra's is; medusa learns as many
products as hydra, the others about as many as eagle."""

MASKS = ("prompt_tokens", "mtp")
"""What runs through the whole target while it learns."""


@dataclass(frozen=True)
class TrainingCost:
    """Bytes of disk, and about how long it takes one thread of a machine like the one that was measured."""

    disk_bytes: int
    seconds: float


def training_cost(drafter: str, reply_tokens: int, parameters: int, hidden: int) -> TrainingCost:
    """What so many tokens of replies take.

    Args:
        parameters, hidden: of the target: its numbers, and the width of its states.
    """
    size, width = parameters / _MEASURED_PARAMETERS, hidden / _MEASURED_WIDTH
    write, read = size / _WRITTEN_PER_S, size * TOKENS_PER_REPLY_TOKEN / _READ_PER_S
    muon = _MATRIX_SHARE * width**3 * LEAST_TEXTS / texts_per_batch(hidden)
    epochs = MASK_EPOCHS if drafter in MASKS else EPOCHS
    learn = epochs * ((1.0 - _MATRIX_SHARE) * width + muon) / TOKENS_LEARNT_PER_S[drafter]
    return TrainingCost(states_bytes(reply_tokens, TAPS, hidden), reply_tokens * (write + read + learn))


def texts_per_batch(hidden: int) -> int:
    """How many texts make a step of learning, for a target whose states are so wide.

    A step of Muon multiplies matrices: it grows with the cube of the width, what a text takes with less. So wider
    networks take more texts together. With 1,536 numbers in a state and 4 texts Muon took 0.85 of the time.
    """
    return min(_MOST_TEXTS, max(LEAST_TEXTS, hidden // _WIDTH_OF_A_TEXT))


def states_bytes(reply_tokens: int, taps: int, hidden: int) -> int:
    """What the states of so many tokens of replies, and of their prompts, take on disk."""
    return int(reply_tokens * TOKENS_PER_REPLY_TOKEN) * bytes_of_token(taps, hidden)


def bytes_of_token(taps: int, hidden: int) -> int:
    """What a token takes on disk: its states, its likeliest next tokens, itself, and the probability of the rest."""
    return taps * hidden * 2 + LIKELIEST * (4 + 2) + 4 + 4
