"""An account of the tokens that drafting gained lately over plain rounds: while some are left, drafting goes on."""

from __future__ import annotations

import math

_CREDIT = 2.5
"""Tokens that drafting may lose before it has gained any: 2 % of a reply of 128."""

_CREDIT_AGAIN = 1.0
"""The same where drafting lost in an earlier reply."""

_MOST = 8.0
"""Gains beyond this are forgotten, so that drafting which began to lose is stopped soon after it had paid for long."""

_SAVED = 0.02
"""Share of a plain round's time that is set aside for trials."""

_IN_VAIN = 0.05
"""Share of a plain round's time that is not charged to a round in which no guess was found: one has to look."""


class DraftingAccount:
    """Decides whether to draft, by what rounds with drafting really took and emitted.

    A round that emits n tokens in the time of m plain rounds gains n − m. Drafting begins with a small credit, goes on
    while gains and credit together are above what it lost, and is stopped otherwise. Gains of single rounds vary far
    more than their mean, so nothing is concluded from a few of them.

    After that there are trials: rounds with drafting, of which one that gains reopens the account with its gain. They
    come less often after each that fails, and never before plain rounds have set aside what a trial is expected to
    lose. So drafting that does not pay costs the credit, what the round that used it up lost more, and `_SAVED`.

    What does not pay in one text may in another, so a reply may begin with a small credit again: the next one after
    drafting was stopped, the second after that, then the fourth, and so on, until drafting pays.

    Attributes:
        balance: tokens that drafting has gained more than it lost, credit included.
    """

    def __init__(self, probe: int, credit: float = _CREDIT) -> None:
        """`probe`: rounds without drafting before the first trial."""
        self._probe = self._patience = probe
        self.balance = credit
        self._saved = 0.0
        self._rested = 0  # rounds since the last with drafting
        self.replies_left = self._replies_between = 1  # until one begins so; from that one to the next

    def recall(self, balance: float) -> None:
        """Begin with the credit that an earlier engine's balance is worth, never with more than `_CREDIT`."""
        self.balance = min(_CREDIT, max(balance, min(self.balance, _CREDIT_AGAIN)))

    @property
    def pays(self) -> bool:
        """Whether drafting has gained more than it lost, credit included."""
        return self.balance > 0.0

    @property
    def surely_pays(self) -> bool:
        """Whether it has gained nearly as much as is remembered."""
        return self.balance >= 0.75 * _MOST

    def rounds_left(self, loss: float) -> int:
        """Rounds until the next trial within a reply, if that is expected to lose so many tokens."""
        return max(0, self._patience - self._rested, math.ceil((loss - self._saved) / _SAVED))

    def begin_reply(self) -> bool:
        """Note that a reply begins while drafting is stopped; whether there is a small credit for it to try again."""
        self.replies_left -= 1
        if self.replies_left > 0:
            return False
        self._replies_between *= 2
        self.replies_left = self._replies_between
        self.balance = _CREDIT_AGAIN
        return True

    def begin_trial(self) -> None:
        """Note that a trial within a reply begins. If it fails, the next one comes later."""
        self._patience = 2 * max(self._patience, self._rested)
        self._rested = 0

    def rest(self) -> None:
        """A round without drafting is over."""
        self._rested += 1
        self._saved += _SAVED

    def add(self, tokens: int, plain_rounds: float, in_vain: bool) -> None:
        """A round with drafting is over, as long as so many `plain_rounds`; `in_vain`: it had no guesses."""
        gain = tokens - plain_rounds
        if in_vain:
            gain = min(0.0, gain + _IN_VAIN)
        self._rested = 0
        self.balance = min(_MOST, self.balance + gain)
        if self.balance >= _CREDIT:
            self._patience, self.replies_left, self._replies_between = self._probe, 1, 1
        elif not self.pays:
            self._saved = max(0.0, self._saved + self.balance)
            self.balance = 0.0


_FIRST, _MOST_BETWEEN = 12, 96
"""Rounds with guesses before the first comparison, and the most before a later one.

A reply that ends before the first has guesses in all of its rounds.
"""


class PlainComparison:
    """Decides when a round is plain to compare with: after 12 rounds with guesses, 12 more, then 24, 48, 96, 96, …"""

    def __init__(self) -> None:
        self._rounds = self._made = 0  # with guesses since the last comparison; comparisons

    @property
    def due(self) -> bool:
        return self._rounds >= min(_MOST_BETWEEN, _FIRST << max(0, self._made - 1))

    def add(self, rounds: int, plain: bool) -> None:
        """Count this many rounds; `plain` says whether the last one was plain."""
        if not plain:
            self._rounds += rounds
        elif self._rounds:
            self._rounds, self._made = 0, min(self._made + 1, _MOST_BETWEEN)
