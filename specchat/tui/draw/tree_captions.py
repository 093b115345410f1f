"""The captions of the tree: how many guesses were kept, the reply's figures, and the playback speed."""

from __future__ import annotations

from specchat.engine.protocol.events import RoundDone
from specchat.tui.state.reply_figures import Figures
from specchat.tui.text import numbers


def title_of(round: RoundDone | None, *, told: bool = True) -> str:
    """`kept 3 of 18 guesses`, or `plain · 1 token`; `told`: whether the verdict is on the screen."""
    if round is None:
        return "tree"
    drafted = len(round.tree.tokens) - 1
    if drafted <= 0:
        return "plain · 1 token"
    guesses = numbers.guesses(drafted)
    return f"kept {len(round.verdict.path)} of {guesses}" if told else guesses


def summary_of(figures: Figures | None) -> str:
    """`τ 4.2 · 2.7×`, the ratio in as many digits as the line below the reply has."""
    if figures is None or not figures.rounds:
        return ""
    parts = [f"τ {figures.acceptance_length:.1f}"]
    if figures.speedup:
        parts.append(figures.speedup.ratio)
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
