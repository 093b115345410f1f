"""What can be trained at all: refused in one place, before torch is imported or anything loaded. Torch-free."""

from __future__ import annotations

import os
from pathlib import Path

from specchat.config import ModelSpec, load_catalog, own_drafters_dir
from specchat.config.directories import expanded
from specchat.config.drafter_names import free_name, whose_name
from specchat.config.toml_checks import NAME
from specchat.errors import UsageError, nearest, short
from specchat.models.inspect.training_cost import TOKENS_LEARNT_PER_S

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
