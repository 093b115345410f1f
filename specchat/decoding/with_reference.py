"""A speculator whose drafter is guided by a text that the reply is expected to follow."""

from __future__ import annotations

from dataclasses import replace

from specchat.decoding.speculate import Speculator
from specchat.drafters.reference import ExpectedReply, WithReference


def with_reference(speculator: Speculator, expected: ExpectedReply | None) -> Speculator:
    """The same parts, with a reference's guesses before the drafter's own where there is one."""
    if expected is None:
        return speculator
    guided = replace(speculator, drafter=WithReference(speculator.drafter, expected))
    guided.feed = speculator.feed
    return guided
