"""Real rounds over a model without a tokenizer: the cost of decoding, measured through the loop that chats use."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from specchat.core.context import Context
from specchat.core.device_copy import synchronize
from specchat.core.noise import Noise
from specchat.decoding.assemble import assemble, sampling
from specchat.decoding.speculate import Speculator
from specchat.models.decoder.decoder import Decoder
from specchat.settings import Settings

PLAIN: Mapping[str, Any] = {"controller": "off"}
"""Settings under which every tree is its root."""


def wide_trees(nodes: int) -> dict[str, Any]:
    """Settings under which every tree has so many nodes, once there is enough text to guess from."""
    return {
        "drafter": "merge",
        "policy": "best_first",
        "controller": "fixed",
        "width": 8,
        "depth": 16,
        "nodes": nodes,
        "method_options": {"merge.of": "suffix,token_recycling"},
    }


@dataclass(frozen=True)
class Stretch:
    """Rounds that ran one after another.

    Args:
        seconds: of each round, from the end of the one before it. Every round ends with what the device said, so the
            device's time is in it.
        nodes: drafted in each round.
    """

    seconds: tuple[float, ...]
    nodes: tuple[int, ...]

    @property
    def round_s(self) -> float:
        """The median: growing a cache or capturing a graph is paid once, and no part of a typical round."""
        return statistics.median(self.seconds)

    @property
    def mean_nodes(self) -> float:
        return statistics.fmean(self.nodes)


@dataclass
class Running:
    """A speculator in the middle of a text."""

    model: Decoder
    speculator: Speculator
    context: Context

    @classmethod
    def begin(cls, model: Decoder, changes: Mapping[str, Any], prompt: Sequence[int]) -> Running:
        """Read the prompt; the settings are the defaults with these changes."""
        settings = Settings().but(changes)
        speculator = assemble(settings, model, None)
        context = Context(list(prompt), len(prompt), model.vocab_size, sampling(settings), Noise(0))
        speculator.start(context.history)
        return cls(model, speculator, context)

    def run(self, rounds: int, speculator: Speculator | None = None) -> Stretch:
        """Run this many more rounds, by this speculator or by another made of the same parts."""
        chosen = speculator or self.speculator
        nodes: list[int] = []
        synchronize(self.model.device)
        ends = [time.perf_counter()]
        for _ in range(rounds):
            nodes.append(chosen.round(self.context).tree.drafted)
            ends.append(time.perf_counter())
        return Stretch(tuple(end - start for start, end in pairwise(ends)), tuple(nodes))
