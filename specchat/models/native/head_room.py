"""Room for what the compiled kernels' head says of some rows."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from specchat.core.head_output import HeadOutput, LogProbabilities

BEST = 64
"""How many of the highest logits of a row the head names; best.h has the same number."""


class HeadRoom:
    """Room for what a head says of some rows.

    Attributes:
        logits: (rows, V) float32.
        rows, width: of the logits.
        best: (rows, BEST) int32, places of the highest, best first.
        highest: (rows, BEST) float32, those logits; where asked for.
        totals: (rows,) float32, logarithm of the sum of the exponentials of all; where asked for.
        addresses: of logits and of these three, as C takes them.
    """

    def __init__(self, rows: int, width: int, *, highest: bool = False, totals: bool = False) -> None:
        self.logits, self.rows, self.width = torch.empty(rows, width), rows, width
        self._best = array("i", bytes(4 * BEST * rows))  # read sooner than a tensor
        self.highest = torch.empty(rows, BEST) if highest else None
        self.totals = torch.empty(rows) if totals else None
        self.addresses = (
            *(self.logits.data_ptr(), self._best.buffer_info()[0]),
            None if self.highest is None else self.highest.data_ptr(),
            None if self.totals is None else self.totals.data_ptr(),
        )

    def output(self, log_probabilities: LogProbabilities | None = None) -> HeadOutput:
        """What was written; of fewer than BEST logits as many are named as there are."""
        best, highest = self.best, self.highest
        if self.width < BEST:
            best, highest = best[:, : self.width], None if highest is None else highest[:, : self.width]
        return HeadOutput(self.logits, best, self.totals, highest, None, self._best[::BEST], log_probabilities)

    @property
    def best(self) -> Tensor:
        if not self.rows:
            return torch.empty(0, BEST, dtype=torch.int32)
        return torch.frombuffer(self._best, dtype=torch.int32).view(self.rows, BEST)
