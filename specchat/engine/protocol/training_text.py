"""What came of a training, in words: the same in the app and on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.training_report import DEFAULT, Curve, Judged, MeasuredWay

_BAR = 40


def table_lines(judged: Judged) -> list[str]:
    """Each way with its ratio to plain decoding, the range of that, and its mean tokens a round."""
    wide = max(len(way.name) for way in judged.ways)
    return [f"{'':{wide}}  × plain  (95 %)       τ", *(_table_line(way, wide) for way in judged.ways)]


def verdict_line(judged: Judged, name: str, pair: str) -> str:
    """Which way is the quickest.

    Args:
        name: of the trained drafter.
    """
    ratios = {way.name: way.ratio for way in judged.ways}
    default = ratios.get(DEFAULT, 0.0)
    if not judged.best:
        return f"{pair}'s default stays the quickest: {default:.2f} × plain; nothing was changed"
    return f"quickest: {name} {judged.best}, {ratios[judged.best]:.2f} × plain, {pair}'s default {default:.2f} ×"


def curve_lines(curve: Curve, most: int = 64) -> list[str]:
    """τ over the tokens seen, as bars of text: at most so many points, the last one among them."""
    points = _thinned(curve.points, most)
    scale = _BAR / max(max((tau for _, tau in points), default=1.0) - 1.0, 1e-9)
    return [f"{tokens:>11,}  {tau:.2f}  {'█' * round((tau - 1.0) * scale)}".rstrip() for tokens, tau in points]


def span(seconds: float) -> str:
    """A time to wait, roughly: `40 s`, `25 min`, `2.5 h`."""
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _thinned(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    step = -(-len(points) // most)
    return list(points) if step <= 1 else list(reversed(points[::-1][::step]))


def _table_line(way: MeasuredWay, wide: int) -> str:
    between = "" if way.low is None or way.high is None else f"{way.low:.2f}–{way.high:.2f}"
    tau = "" if way.tau is None else f"{way.tau:.2f}"
    wrong = "" if way.same_text else "  its texts are not the target's own"
    return f"{way.name:{wide}}  {way.ratio:7.2f}  {between:11}  {tau:>4}{wrong}".rstrip()
