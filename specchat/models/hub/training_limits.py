"""What can be trained at all: refused in one place, before torch is imported or anything loaded. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specchat.config import ModelSpec, load_catalog, own_drafters_dir
from specchat.config.directories import expanded
from specchat.config.drafter_names import free_name, whose_name
from specchat.config.toml_checks import NAME
from specchat.errors import UsageError, nearest, short

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


SELF = "self"
"""Prompts that the target writes itself."""

CHATS = "chats"
"""Prompts that are the user's own messages."""

LOSSES = ("forward_kl", "reverse_kl", "jsd", "tvd", "tvd_plus_plus")
"""How a draft model's law can be brought to the target's; the first where none is named."""

SELECTIONS = ("behind", "missed")
"""How a reference can decide what is learnt from; the first where none is named."""

_DISTILLED = ("draft_model",)
"""What learns with such a loss."""

_FEWEST_TOKENS = 5200
"""Some 40 texts of the longest replies: fewer cannot be told from chance."""

_MOST_TOKENS = 10**10
_MOST_HOURS = 10_000


def trainable_target(pair: str) -> ModelSpec:
    """The target of a pair, for which drafters can be trained.

    Raises:
        UsageError: there is no such pair, or its target has no weights.
    """
    catalog = load_catalog()
    target = catalog.model(catalog.pair(pair).target)
    if target.scripted:
        raise UsageError(f"pair {pair!r} has no weights to learn from; choose a pair with a model")
    return target


def refuse_impossible(drafter: str, prompts: str, reply_tokens: int, hours: float, name: str) -> None:
    """Refuse what cannot be trained.

    Raises:
        UsageError: with the nearest that can be.
    """
    refuse_unknown_method(drafter)
    if prompts not in (SELF, CHATS) and not os.path.isfile(prompts_file(prompts)):
        raise UsageError(f"--prompts {short(prompts)} is neither {SELF!r}, {CHATS!r} nor a file")
    if reply_tokens < _FEWEST_TOKENS:
        raise UsageError(f"--tokens {reply_tokens} is too few to learn from; at least {_FEWEST_TOKENS}")
    if reply_tokens > _MOST_TOKENS:
        raise UsageError(f"--tokens {reply_tokens} is too many; at most {_MOST_TOKENS}")
    if not 0 <= hours < _MOST_HOURS:
        raise UsageError(f"--hours {hours:g} must be 0 (as long as it helps) or more, and below {_MOST_HOURS}")
    if not NAME.fullmatch(name):
        raise UsageError(f"--name {short(name)} is not a valid name: letters, digits, '.', '_' and '-'")


def refuse_unknown_method(drafter: str) -> None:
    """Refuse a drafter that is not trained.

    Raises:
        UsageError: with the nearest that is.
    """
    if drafter not in TOKENS_LEARNT_PER_S:
        raise UsageError(
            f"--drafter {short(drafter)} is not one that can be trained{nearest(drafter, TOKENS_LEARNT_PER_S)}"
        )


def refuse_unknown_loss(drafter: str, loss: str, reference: str, select: str) -> None:
    """Refuse a loss or a selection that does not exist, or either for a drafter that learns in another way.

    Raises:
        UsageError: with the nearest that can be.
    """
    if drafter not in _DISTILLED and (loss or reference or select):
        flag = "--loss" if loss else "--reference" if reference else "--select"
        raise UsageError(
            f"{flag} is for --drafter {' and '.join(_DISTILLED)}; {drafter} learns in chains of its guesses"
        )
    if loss and loss not in LOSSES:
        raise UsageError(f"--loss {short(loss)} is not one that can be learnt with{nearest(loss, LOSSES)}")
    if select and select not in SELECTIONS:
        raise UsageError(f"--select {short(select)} is not a way to select tokens{nearest(select, SELECTIONS)}")
    if select and not reference:
        raise UsageError(f"--select {select} needs --reference NAME, an earlier draft model that decides")


def refuse_hiding(name: str) -> None:
    """Refuse a name under which the trained drafter would be used in the place of another one.

    Raises:
        UsageError: with the nearest name that is free.
    """
    if whose := whose_name(name):
        free = free_name(name, lambda one: (own_drafters_dir() / one).exists())
        raise UsageError(
            f"--name {short(name)}: the drafter of this name {whose}, and yours would be used in its place; "
            f"{free!r} is free"
        )


def refuse_replacing_start(name: str, start: str) -> None:
    """Refuse a name under which the trained drafter would take the place of the one that it begins with.

    Raises:
        UsageError: with the nearest name that is free.
    """
    if start and name == start:
        free = free_name(name, lambda one: (own_drafters_dir() / one).exists())
        raise UsageError(
            f"--name {short(name)} is also the drafter that --from names, and would be replaced; {free!r} is free"
        )


def prompts_file(prompts: str) -> Path:
    """The file of prompts that is meant.

    Raises:
        UsageError: it is not a valid path.
    """
    return expanded(prompts, "--prompts")
