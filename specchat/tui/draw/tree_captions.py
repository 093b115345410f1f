"""The captions of the tree: what was drafted, its figures, and the playback speed."""

from __future__ import annotations

from specchat.engine.protocol.events import RoundDone
from specchat.tui.state.reply_figures import Figures


def title_of(round: RoundDone | None) -> str:
    """`tree w4 d6 · 18 nodes`, or `plain · 1 token`."""
    if round is None:
        return "tree"
    drafted = len(round.tree.tokens) - 1
    if drafted <= 0:
        return "plain · 1 token"
    letters = (("w", "width"), ("d", "depth"))
    budget = "".join(f" {letter}{round.budget[name]}" for letter, name in letters if name in round.budget)
    return f"tree{budget} · {drafted} node{'s' if drafted != 1 else ''}"


def summary_of(figures: Figures | None) -> str:
    """`τ 4.2 · 2.7×`."""
    if figures is None or not figures.rounds:
        return ""
    parts = [f"τ {figures.acceptance_length:.1f}"]
    if figures.speedup:
        parts.append(f"{figures.speedup.value:.1f}×")
    return " · ".join(parts)


def pace_of(held: bool, gap_s: float) -> str:
    """`‖ held · ` or `▸ 2 rounds/s · `, in front of a title; nothing at full speed."""
    if held:
        return "‖ held · "
    if gap_s <= 0:
        return ""
    rate = 1 / gap_s
    return (
        f"▸ {rate:.3g} rounds/s · " if rate > 1 else f"▸ 1 round in {gap_s:.3g} s · " if rate < 1 else "▸ 1 round/s · "
    )
