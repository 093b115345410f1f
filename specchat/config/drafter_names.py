"""Names for drafters to be trained: never that of a drafter that no training made, which it would replace."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from specchat.config.catalog import load_catalog
from specchat.config.directories import shipped_drafters_dir


def suggested_name(pair: str, drafter: str, taken: Callable[[str], bool] = lambda name: False) -> str:
    """The default name of a drafter: its pair and its method.

    Args:
        taken: which names are not to be suggested either.
    """
    return free_name(f"{pair}-{drafter}", taken)


def free_name(name: str, taken: Callable[[str], bool] = lambda name: False) -> str:
    """This name, with a number from 2 on where another drafter has this name, or it is `taken`."""
    named = load_catalog().drafters
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(one for one in names if not (_is_shipped(one) or one in named or taken(one)))


def whose_name(name: str) -> str:
    """In words, where the drafter of this name comes from, if not from a training; else empty."""
    if _is_shipped(name):
        return "comes with specchat"
    return "is named in models.toml" if name in load_catalog().drafters else ""


def _is_shipped(name: str) -> bool:
    return (shipped_drafters_dir() / name).exists()
