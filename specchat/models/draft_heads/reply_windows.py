"""Pieces of recorded replies, as long as one slice of idle time can learn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specchat.indexes.reply_buffer import RecordedReply
from specchat.models.draft_heads.batch import Batch


@dataclass(frozen=True)
class Window:
    """This many neighbouring places of a reply, from `place` on, from each of which a chain is drafted."""

    reply: RecordedReply
    place: int
    anchors: int

    def batch(self, steps: int) -> Batch:
        """This piece as a batch of one text, with the tokens that chains of so many guesses need behind it."""
        length = self.anchors + steps + 1
        part, reply = slice(self.place, self.place + length), self.reply
        tokens, rows = reply.tokens[part].long(), len(reply.inputs[part])
        missing = length - rows
        known = reply.known[part].clone()
        known[self.anchors :] = False
        log_p = F.pad(reply.log_p[part].float(), (0, 0, 0, missing), value=-torch.inf)
        return Batch(
            features=F.pad(reply.inputs[part].float(), (0, 0, 0, missing))[None],
            tokens=F.pad(tokens, (0, length - len(tokens)))[None],
            first=torch.tensor([0]),
            last=torch.tensor([len(tokens) - 2]),
            likeliest=F.pad(reply.likeliest[part].long(), (0, 0, 0, missing))[None],
            log_p=log_p[None],
            rest=(1.0 - log_p.exp().sum(-1)).clamp_min(0.0)[None],
            known=F.pad(known, (0, missing))[None],
        )


def windows_of(reply: RecordedReply, anchors: int) -> Iterator[Window]:
    """A whole reply, piece by piece."""
    for place in range(0, len(reply) - 1, anchors):
        yield Window(reply, place, anchors)
