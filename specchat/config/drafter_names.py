"""What a drafter that is to be trained is called where nobody names it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from specchat.config.directories import shipped_drafters_dir


def suggested_name(pair: str, drafter: str, taken: Callable[[str], bool] = lambda name: False) -> str:
    """The pair's name and the drafter's; with a number from 2 on where a drafter that comes with specchat is called so.

    A drafter of one's own would be used in its place, better or not.

    Args:
        taken: which names are not to be suggested either.
    """
    first = f"{pair}-{drafter}"
    names = (first if number == 1 else f"{first}-{number}" for number in count(1))
    return next(name for name in names if not (shipped_drafters_dir() / name).exists() and not taken(name))
