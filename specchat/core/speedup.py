"""The speed-up of a reply over plain decoding, estimated from the plain rounds within the same reply."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

FEWEST_PLAIN_ROUNDS = 8
"""With fewer plain rounds no speed-up is reported."""

_WIDEST = 0.5
"""A figure whose interval reaches further than this share of it on either side is too uncertain: it is withheld."""

_DRIFT = 0.05
"""Share of the figure that its interval reaches at least: the memory's speed changes between a reply's plain rounds,
and a plain pass takes some 2 % longer after a larger one than after another plain one (docs/measurements)."""

_Z = 1.959964  # the normal law's 97.5 % point


@dataclass(frozen=True)
class Speedup:
    """The time of plain decoding over that of the reply, with its 95 % interval."""

    value: float
    low: float
    high: float
    plain_rounds: int

    @property
    def ratio(self) -> str:
        """`1.5×`, with a digit more where that much is known."""
        return f"{self.value:.{self._digits}f}×"

    @property
    def text(self) -> str:
        """`1.5× ± 0.1`: the ratio with its interval."""
        return f"{self.ratio} ± {max(self._half, 0.01):.{self._digits}f}"

    @property
    def _half(self) -> float:
        """The wider side of the interval."""
        return max(self.value - self.low, self.high - self.value)

    @property
    def _digits(self) -> int:
        return 1 if self._half >= 0.05 else 2


@dataclass
class _Stretch:
    """The rounds that one plain round stands for: those nearer to it than to any other plain round.

    Args:
        plain_s: the plain round's own gap, learning left out.
        tokens: of all its rounds.
        drafts: its other rounds, and drafts_s: the gaps of those.
    """

    plain_s: float
    tokens: int = 1
    drafts: int = 0
    drafts_s: float = 0.0

    def take(self, rounds: Sequence[tuple[int, float]]) -> None:
        """These (tokens, gap) belong to it too."""
        self.tokens += sum(tokens for tokens, _ in rounds)
        self.drafts += len(rounds)
        self.drafts_s += sum(gap_s for _, gap_s in rounds)


@dataclass
class RoundIntervals:
    """The gaps of a reply's rounds: each from a round's beginning to the next one's, pauses left out.

    A gap holds everything a round costs: planning, drafting, verifying, learning, and telling what came of it. What
    drafter, policy and controller take to plan and to learn from a plain round is left out where it stands for plain
    decoding, which has none of them. Rounds may be heard of live or read from a recording: the figure is the same.
    """

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    seconds: float = 0.0
    _stretches: list[_Stretch] = field(default_factory=list)
    _since: list[tuple[int, float]] = field(default_factory=list)  # rounds after the last plain one
    _last: tuple[int, float, float | None] | None = None  # the running gap: tokens, beginning, learning if it is plain

    @property
    def plain_rounds(self) -> int:
        return len(self._stretches)

    def add(self, at_s: float, own_s: float, tokens: int, drafted: int, plain: bool, learn_s: float = 0.0) -> None:
        """Count one more round.

        Args:
            at_s: when, on the reply's clock.
            own_s: what it took itself: it began that long before.
            plain: its budget was 0. A round whose drafter found nothing is none: it searched.
            learn_s: what drafter, policy and controller took of it to plan and to learn.
        """
        self._close(at_s - own_s)
        self.rounds += 1
        self.tokens += tokens
        self.drafted += drafted
        self._last = tokens, at_s - own_s, learn_s if plain else None

    def end(self, at_s: float) -> None:
        """The reply is over and told, so the last round's gap is known."""
        self._close(at_s)

    @property
    def speedup(self) -> Speedup | None:
        """Tokens × mean gap of plain rounds ÷ all gaps; None where too few rounds were plain, or nothing was drafted.

        Each plain round is weighted by the tokens around it, so that the mean is one over the whole reply. The interval
        is about how long plain rounds would have taken in the places of the others (the delta method): a plain round is
        expected to be slowed as the rounds around it are; what it deviates by is the error of its stretch.

        A round that drafts takes no less than a plain one and emits τ tokens on average, so no ratio can exceed τ. One
        that does comes from a disturbance, and is withheld.
        """
        if self.plain_rounds < FEWEST_PLAIN_ROUNDS or not self.drafted or self.seconds <= 0:
            return None
        stretches = self._complete()
        would_be_s = sum(stretch.tokens * stretch.plain_s for stretch in stretches)
        value, most = would_be_s / self.seconds, self.tokens / self.rounds
        if value > most:
            return None
        half = math.hypot(_error_s(stretches, would_be_s) / self.seconds, _DRIFT * value)
        if half > _WIDEST * value:
            return None
        return Speedup(value, max(0.0, value - half), min(most, value + half), self.plain_rounds)

    def _complete(self) -> list[_Stretch]:
        """The stretches, the last of which takes the rounds after it."""
        *stretches, last = self._stretches
        last = dataclasses.replace(last)
        last.take(self._since)
        return [*stretches, last]

    def _close(self, now_s: float) -> None:
        """The running gap ends now."""
        if self._last is None:
            return
        (tokens, began_s, plain_learn_s), self._last = self._last, None
        gap_s = max(0.0, now_s - began_s)
        self.seconds += gap_s
        if plain_learn_s is None:
            self._since.append((tokens, gap_s))
            return
        stretch = _Stretch(max(0.0, gap_s - plain_learn_s), tokens)
        middle = len(self._since) // 2 if self._stretches else 0
        if middle:
            self._stretches[-1].take(self._since[:middle])
        stretch.take(self._since[middle:])
        self._since.clear()
        self._stretches.append(stretch)


def _error_s(stretches: Sequence[_Stretch], would_be_s: float) -> float:
    """Half the 95 % interval of Σ tokens × plain gap."""
    tokens = sum(stretch.tokens for stretch in stretches)
    drafts = sum(stretch.drafts for stretch in stretches)
    plain_s = would_be_s / tokens
    drafts_s = sum(stretch.drafts_s for stretch in stretches) / max(1, drafts)

    def error(stretch: _Stretch) -> float:
        usual_s = stretch.drafts * drafts_s + plain_s
        slowed = (stretch.drafts_s + stretch.plain_s) / usual_s if usual_s else 1.0
        return stretch.tokens * (stretch.plain_s - plain_s * slowed)

    alike = tokens**2 / sum(stretch.tokens**2 for stretch in stretches)  # as many stretches of the same size
    variance = sum(error(stretch) ** 2 for stretch in stretches) * alike / max(0.5, alike - 1)
    return _student(alike - 1) * math.sqrt(variance)


def _student(freedom: float) -> float:
    """The 97.5 % point of Student's law, by its expansion around the normal law's."""
    z, v = _Z, max(1.0, freedom)
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + terms[0] / v + terms[1] / v**2 + terms[2] / v**3
