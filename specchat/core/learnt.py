"""What a drafter has learnt from the user's replies, in figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Learnt:
    """What was learnt, and what it was worth on the most recent text, measured before that was learnt from.

    Args:
        replies, tokens: recorded so far, those that have been forgotten since included.
        kept_tokens, kept_bytes: of the replies that are kept to learn from.
        updates: of the weights, so far.
        went_back: how often what was learnt was dropped, because it did worse than the original weights.
        chains: places in the most recent replies from which both networks were asked.
        before, now: for each depth, how many of the chains were right that far: with the original weights, and with
            those in use when the reply was written.
    """

    replies: int = 0
    tokens: int = 0
    kept_tokens: int = 0
    kept_bytes: int = 0
    updates: int = 0
    went_back: int = 0
    chains: int = 0
    before: tuple[int, ...] = ()
    now: tuple[int, ...] = ()
