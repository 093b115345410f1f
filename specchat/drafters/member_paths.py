"""Which members of a drafter proposed which node of a growing tree."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specchat.core.tree import Guess

Path = tuple[int, ...]
"""Tokens below the root."""


class MemberPaths:
    """Each member's own tree, as paths below the root. A node is a member's if it proposed every token down to it.

    A node that no member proposed came from outside, and belongs to every member.
    """

    def __init__(self, members: int) -> None:
        self._all = frozenset(range(members))
        self._whose: dict[Path, set[int]] = {}

    def owners(self, path: Path) -> Collection[int]:
        """The members in whose tree this node is."""
        return self._whose.get(path, self._all)

    def add(self, member: int, path: Path, guesses: Sequence[Guess]) -> None:
        """What a member proposed below one of its nodes."""
        for guess in guesses:
            self._whose.setdefault((*path, guess.token), set()).add(member)

    def forget_round(self) -> None:
        """Another tree begins."""
        self._whose.clear()
