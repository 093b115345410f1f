"""Guesses of networks that guess at all depths in one call, handed out node by node."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.core.trained_network import Guessed


def of_depths(said: Guessed, depths: Sequence[int]) -> Guessed:
    """What follows nodes of these depths, from what follows a node of each depth."""
    some = list(depths)
    return Guessed(said.tokens[some], said.logprobs[some], said.possible, said.totals[some], lambda: said.logits[some])
