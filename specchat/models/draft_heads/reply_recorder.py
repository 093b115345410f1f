"""Records what the target says along a reply, so that a trained network can learn from it when the reply is over."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specchat.core.reading import Reading
from specchat.core.round import Round
from specchat.core.tree import ROOT
from specchat.indexes.reply_buffer import LIKELIEST, MOST_REPLY_TOKENS, RecordedReply
from specchat.models.draft_heads.text_inputs import TextInputs

_FEWEST_TOKENS = 6
"""A shorter reply holds no chain of guesses that could be judged."""


class ReplyRecorder:
    """The reply that is being written: its tokens, and what the target held likely after each of them.

    A round costs two small copies. What the network makes of the target's states is known to the drafter already, and
    is fetched when the reply is over.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was noted: a text begins or has changed."""
        self._first = 0  # position of the first root
        self._tokens: list[int] = []
        self._bonus: int | None = None  # follows them, unless the reply ended on one of them
        self._laws: list[tuple[Tensor, Tensor]] = []

    def observe(self, round: Round) -> None:
        """Note what the target said after the root and the accepted path."""
        position = round.start - 1
        if not self._tokens:
            self._first = position
        if len(self._tokens) >= MOST_REPLY_TOKENS:
            return
        if position != self._first + len(self._tokens):  # a round was not shown here
            self.begin()
            return
        path = (ROOT, *round.verdict.path)
        self._tokens += [round.tree.tokens[node] for node in path]
        self._bonus = round.verdict.bonus
        self._laws.append(_law(round.reading, path))

    def taken(self, text: TextInputs) -> RecordedReply | None:
        """What was noted, with what the network made of the states there; None where that is too little."""
        read, laws, bonus, first = self._tokens, self._laws, self._bonus, self._first
        self.begin()
        tokens = read if bonus is None else [*read, bonus]
        count = len(tokens)
        if count < _FEWEST_TOKENS or first < 1 or not text.holds(first, read):
            return None
        inputs, known = text.kept(first - 1, first - 1 + count)
        if not bool(known.any()):
            return None
        nothing = torch.zeros(1, LIKELIEST, dtype=torch.int32), torch.full((1, LIKELIEST), -torch.inf)
        likeliest, log_p = (torch.cat(parts)[:count] for parts in zip(nothing, *laws, strict=True))
        return RecordedReply(
            torch.tensor([text.tokens[first - 1], *tokens], dtype=torch.int32),
            inputs.to(torch.bfloat16),
            known,
            likeliest.to(torch.int32),
            log_p.to(torch.float16),
        )


def _law(reading: Reading, nodes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(n, LIKELIEST) the likeliest tokens after these nodes and the logarithms of their probabilities.

    Where there are fewer tokens, what is left has no probability. Synchronises with the device.
    """
    count = min(LIKELIEST, reading.logits.shape[1])
    likeliest = np.asarray(reading.best_after(nodes, count))
    rows = np.asarray([reading.row(node) for node in nodes])[:, None]
    if reading.logits.device.type == "cpu" and reading.logits.dtype == torch.float32:
        logits = torch.from_numpy(reading.logits.numpy()[rows, likeliest])
    else:
        logits = reading.logits[torch.from_numpy(rows), torch.from_numpy(likeliest)].float().cpu()
    found = torch.zeros(len(nodes), LIKELIEST, dtype=torch.int32)
    log_p = torch.full((len(nodes), LIKELIEST), -torch.inf)
    found[:, :count] = torch.from_numpy(likeliest)
    log_p[:, :count] = logits - reading.totals_after(nodes).cpu()[:, None]
    return found, log_p
