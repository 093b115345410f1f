"""An edit that breaks a method, with the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass

DRAFTER = "tests/contracts/test_drafter_contract.py"


@dataclass(frozen=True)
class Mutation:
    """One edit of one file.

    Args:
        method: `family name` of the method it breaks, or what else it breaks.
        what: the edit in words.
        file: below the package.
        old, new: the text that is replaced, which occurs once, and what replaces it.
        tests: pytest arguments that select the tests of which one must fail.
        quick: whether it is also tried in the short run.
    """

    method: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    quick: bool = False
