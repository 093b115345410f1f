"""The effect of a change of settings: the figures of the rounds before it and since."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specchat.engine.protocol.events import RoundDone
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, clip, width_of

BEFORE = 32
"""How many rounds before a change are compared; older ones belong to other text."""

ENOUGH = 12
"""Rounds since the change that are needed before figures are shown."""

_MIN_ROUNDS_BETWEEN = 8
_WITHOUT_EFFECT = {"seed", "max_tokens", "stop", "pair"}


@dataclass(frozen=True)
class RoundFigures:
    rounds: int
    tau: float
    tokens_per_s: float

    @classmethod
    def of(cls, rounds: Iterable[tuple[int, float]]) -> RoundFigures | None:
        """The figures of rounds with these tokens and seconds; None where there are none."""
        counted = list(rounds)
        tokens, seconds = sum(tokens for tokens, _ in counted), sum(seconds for _, seconds in counted)
        if not counted or seconds <= 0:
            return None
        return cls(len(counted), tokens / len(counted), tokens / seconds)


@dataclass
class SettingEffect:
    """Collects rounds and changes. Changes in quick succession count as one."""

    change: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # setting: value before, value now
    _before: list[tuple[int, float]] = field(default_factory=list)
    _since: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=512))
    _added: int = 0

    def add(self, event: RoundDone) -> None:
        self._added += 1
        self._since.append((len(event.pieces), event.timings.total_s))

    def changed(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Record a change of settings; one that is undone leaves nothing to compare."""
        different = differences(before, now)
        if not different:
            return
        if len(self._since) >= _MIN_ROUNDS_BETWEEN or not self._before:
            self._before, self.change = list(self._since)[-BEFORE:], {}
        self._since.clear()
        for name, (old, new) in different.items():
            self.change[name] = (self.change[name][0] if name in self.change else old, new)
        self.change = {name: (old, new) for name, (old, new) in self.change.items() if old != new}
        if not self.change:
            self._since.extend(self._before)
            self._before = []

    def forget(self) -> None:
        """Drop everything: another pair was loaded."""
        self.change, self._before = {}, []
        self._since.clear()

    @property
    def before(self) -> RoundFigures | None:
        return RoundFigures.of(self._before) if self.change else None

    @property
    def since(self) -> RoundFigures | None:
        return RoundFigures.of(self._since)

    @property
    def version(self) -> object:
        """A value that differs whenever the lines differ."""
        return (self._added, *self.change.items()) if self.change else None

    def lines(self, width: int) -> list[ScreenLine]:
        """The change and the numbers of rounds, then the figures; empty where nothing can be compared."""
        before, since = self.before, self.since
        if before is None:
            return []
        rounds = since.rounds if since else 0
        counts = f"{before.rounds} rounds before, {rounds} since" if rounds >= ENOUGH else _since_text(rounds)
        name, (old, new) = next(iter(self.change.items()))
        more = f" and {len(self.change) - 1} more" if len(self.change) > 1 else ""
        values = [numbers.setting(value) for value in (old, new) if value is not None]
        head: ScreenLine = [(f"{name.rpartition('.')[2]} {' → '.join(values)}{more}", "text"), (" · " + counts, "dim")]
        if width_of(head) > width:
            short = f" · {before.rounds} → {rounds} rounds" if rounds >= ENOUGH else " · " + _since_text(rounds)
            head = [*clip(head[:1], max(1, width - len(short))), (short, "dim")]
        return [clip(head, width), clip(self.figures(width), width)]

    def figures(self, width: int) -> ScreenLine:
        """`τ 2.1 → 2.8 · 84 → 103 tok/s`, or `before: τ 2.1 · 84 tok/s` after few rounds; shortened to the width."""
        before, since = self.before, self.since
        if before is None:
            return []
        known = since if since is not None and since.rounds >= ENOUGH else None
        tau, rate = (known.tau, known.tokens_per_s) if known else (None, None)
        line: ScreenLine = []
        for lead, arrow, speed in (("before: ", " → ", True), ("", " → ", True), ("", "→", True), ("", "→", False)):
            lead = "" if known else lead
            line = _part(f"{lead}τ ", before.tau, tau, "{:.1f}".format, "", arrow)
            if speed:
                line += [(" · ", "dim"), *_part("", before.tokens_per_s, rate, numbers.rate, " tok/s", arrow)]
            if width_of(line) <= width:
                break
        return line


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ and can affect speed, each with the values before and now."""
    old, new = _flat(before), _flat(now)
    names = [name for name in {**old, **new} if name not in _WITHOUT_EFFECT]
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k != "method_options"} | dict(settings.get("method_options") or {})


def _since_text(rounds: int) -> str:
    return f"since: {rounds} round{'' if rounds == 1 else 's'}"


def _part(lead: str, old: float, new: float | None, write: Callable[[float], str], unit: str, arrow: str) -> ScreenLine:
    if new is None:
        return [(f"{lead}{write(old)}{unit}", "dim")]
    better = "good" if new > old * 1.02 else "warn" if new < old * 0.98 else "strong"
    return [(f"{lead}{write(old)}{arrow}", "dim"), (write(new), better), (unit, "dim")]
