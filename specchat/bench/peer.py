"""Other engines as contestants: which can run here, how their replies are timed, their threads chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specchat.bench.circumstances import EnergyMeter
from specchat.bench.measured_reply import Written

_TRIAL_TOKENS = 24
_TRIALS = 2
_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Pass:
    """Tokens that a peer handed over at once, and when."""

    tokens: list[int]
    at_s: float


Generate = Callable[[list[int], int], Iterator[Pass]]
"""(prompt, most tokens) → what comes, as it comes. Greedy. The caller stops listening at an end token."""


@dataclass
class Peer:
    """Another engine as a contestant. Its output is counted in token ids, never tokenised anew.

    Args:
        about: what was decided for it: version, threads.
        use_threads: sets its number of threads.
    """

    name: str
    generate: Generate
    eos_ids: frozenset[int]
    max_tokens: int
    meter: EnergyMeter
    use_threads: Callable[[int], None]
    about: dict[str, Any] = field(default_factory=dict)
    threads: int = 0

    def begin(self) -> None:
        """Nothing is kept from one question to the next."""

    def warm_up(self, prompt: list[int]) -> None:
        self._write(prompt, _WARM_UP_TOKENS)

    def write(self, prompt: list[int], seed: int) -> Written:
        """One greedy reply. What comes with the first pass counts as reading the prompt.

        The time of its tokens is therefore taken from the passes after the first, and applied to all of them.
        """
        return self._write(prompt, self.max_tokens)

    def choose_threads(self, prompt: list[int], most: int) -> None:
        """Use one thread or `most`, whichever writes the prompt's reply faster."""
        speeds: dict[int, float] = {}
        for threads in {1, most}:
            self.threads = threads
            self._write(prompt, _WARM_UP_TOKENS)
            tries = [self._write(prompt, _TRIAL_TOKENS) for _ in range(_TRIALS)]
            speeds[threads] = max(len(one.tokens) / (one.prefill_s + one.decode_s) for one in tries)
        self.threads = max(speeds, key=speeds.__getitem__)
        self.about["threads"] = self.threads

    def _write(self, prompt: list[int], most: int) -> Written:
        import torch

        before_threads = torch.get_num_threads()
        self.use_threads(self.threads)
        try:
            before, began = self.meter.joules(), time.perf_counter()
            passes: list[Pass] = []
            for one in self.generate(prompt, most):
                passes.append(one)
                if self.eos_ids.intersection(one.tokens) or sum(len(p.tokens) for p in passes) >= most:
                    break
            energy = self.meter.since(before)
        finally:
            torch.set_num_threads(before_threads)
        return self._timed(passes, began, most, energy)

    def _timed(self, passes: Sequence[Pass], began: float, most: int, energy: float | None) -> Written:
        kept: list[int] = []
        for token in [token for one in passes for token in one.tokens]:
            kept.append(token)
            if token in self.eos_ids:
                break
        tokens = kept[:most]
        if not passes:
            return Written((), "", "end", time.perf_counter() - began, 0.0, None, energy)
        first, last = passes[0], passes[-1]
        total_s, later = last.at_s - began, max(0, len(tokens) - len(first.tokens))
        per_token = (last.at_s - first.at_s) / later if later else total_s / max(1, len(tokens))
        decode_s = min(total_s, per_token * len(tokens))
        stop = "end" if tokens and tokens[-1] in self.eos_ids else "length"
        return Written(tuple(tokens), "", stop, total_s - decode_s, decode_s, None, energy)
