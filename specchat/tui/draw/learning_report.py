"""What the drafter has learnt from replies, in lines for the chat."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.events import Learnt
from specchat.tui.text import numbers

PRIVACY = (
    "replies from now on are kept to learn from, as their tokens and states of the model: only on the machine of the "
    "engine, at most {most}. /learn forget erases them; while /learn is off nothing is kept"
)


def learning_report(learnt: Learnt) -> str:
    """All that is known, in a few sentences."""
    if not learnt.drafter:
        return f"nothing is learnt: {learnt.why}"
    state = "learns from your replies" if learnt.learning else "does not learn now; /learn on lets it"
    lines = [f"{learnt.drafter} {state}", _amount(learnt)]
    if learnt.chains:
        lines.append(_comparison(learnt))
    if learnt.went_back:
        times = "once" if learnt.went_back == 1 else f"{learnt.went_back} times"
        lines.append(f"it went back to its original weights {times}, because it did worse than they")
    if learnt.disk_bytes:
        lines.append(f"{numbers.size(learnt.disk_bytes)} on the disk; /learn forget erases it")
    return "; ".join(lines)


def _amount(learnt: Learnt) -> str:
    if not learnt.replies:
        return "it has learnt nothing yet"
    replies = "1 reply" if learnt.replies == 1 else f"{learnt.replies:,} replies"
    updates = "1 update" if learnt.updates == 1 else f"{learnt.updates:,} updates"
    return f"learnt from {replies} of {learnt.tokens:,} tokens, in {updates}"


def _comparison(learnt: Learnt) -> str:
    """Both networks on the same text, before it was learnt from: shares right at each depth, and tokens a round."""
    before, now = (_shares(learnt.chains, right) for right in (learnt.before, learnt.now))
    lengths = [1 + sum(right) / learnt.chains for right in (learnt.before, learnt.now)]
    return (
        f"on {learnt.chains:,} places of new text {_percent(before)} % of its guesses at depth "
        f"{', '.join(str(depth) for depth in range(1, len(before) + 1))} were right as it was trained, "
        f"and {_percent(now)} % as it was then: τ {lengths[0]:.2f} → {lengths[1]:.2f} in chains of {len(before)}"
    )


def _shares(chains: int, right: Sequence[int]) -> list[float]:
    """The share that was right at each depth, of those that were right so far."""
    return [now / max(1, before) for before, now in zip([chains, *right], right, strict=False)]


def _percent(shares: Sequence[float]) -> str:
    return ", ".join(f"{100 * share:.0f}" for share in shares)
