"""Several replies at once, each of a conversation with a cache of its own: one pass reads the trees of all of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specchat.core.round import JointPass
from specchat.decoding.conversation import Drafted, PromptDue, Steps
from specchat.decoding.reply_events import Event
from specchat.decoding.speculate import Submitted
from specchat.models.decoder.cached_model import read_together

_log = logging.getLogger(__name__)

SLICE_S = 0.1
"""Prompts are read in slices of about so long while other replies are being written: their streams wait meanwhile."""

LEAST_SLICE_TOKENS, MOST_SLICE_TOKENS = 16, 256
"""The shortest and the longest slice."""


@dataclass(eq=False)
class JoinedReply:
    """A reply that is written with others: its steps, and what is told of its events and of the error that ended it."""

    steps: Steps
    take: Callable[[Event], None]
    failed: Callable[[Exception], None]
    cancelled: Callable[[], bool] = lambda: False
    due: PromptDue | Drafted | None = field(default=None, init=False)
    over: bool = field(default=False, init=False)

    def go_on(self, answer: Any = None, error: Exception | None = None) -> None:
        """Write on until it waits for the target; errors of its own end it."""
        try:
            step = self.steps.send(answer) if error is None else self.steps.throw(error)
            while not isinstance(step, PromptDue | Drafted):
                self.take(step)
                step = next(self.steps)
            self.due = step
        except StopIteration:
            self.over = True
        except Exception as found:
            self.over = True
            self.failed(found)


class Together:
    """Writes replies turn by turn. A turn is a round of each whose prompt was read, and a slice of one prompt.

    Any reply may join and end between two turns. What a reply gets depends on it alone: its conversation has models
    with caches of their own, and the target says of its tree what it would say if it read nothing else. Prompts are
    read by turns, so a long one does not keep a short one waiting.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._replies: list[JoinedReply] = []
        self._clock = clock
        self._turns = 0
        self._slice_tokens = 2 * LEAST_SLICE_TOKENS

    def __len__(self) -> int:
        """How many replies are being written."""
        return len(self._replies)

    def add(self, reply: JoinedReply) -> None:
        """Begin a reply; its first steps are taken at once."""
        self._replies.append(reply)
        reply.go_on()
        self._drop_ended()

    def turn(self) -> None:
        """Write on in all replies."""
        drafted = [reply for reply in self._replies if isinstance(reply.due, Drafted)]
        reading = [reply for reply in self._replies if isinstance(reply.due, PromptDue)]
        self._read_trees(drafted)
        for reply in [reply for reply in reading if reply.cancelled()]:
            reply.go_on(0)
            reading.remove(reply)
        if reading:
            self._read_slice(reading[self._turns % len(reading)], awaited=bool(drafted))
        self._turns += 1
        self._drop_ended()

    def _read_trees(self, drafted: Sequence[JoinedReply]) -> None:
        """Trees that can be read together, in as few passes as can be; the others are read by themselves."""
        due = [(reply, reply.due) for reply in drafted if isinstance(reply.due, Drafted)]
        trees = [(each.speculator.target, each.draft.tree, each.draft.request) for _, each in due]
        submitted_at: dict[int, Submitted] = {}
        began = self._clock()
        try:
            for readings in read_together(trees):
                ended = self._clock()
                rows = sum(len(trees[place][1]) for place in readings)
                joint = JointPass(len(readings), rows, ended - began)
                for place, reading in readings.items():
                    share_s = joint.seconds * len(trees[place][1]) / rows
                    submitted_at[place] = Submitted(due[place][1].draft, reading, began, began + share_s, joint)
                began = self._clock()
        except Exception as error:  # of some of them, perhaps: each is read by itself, and fails by itself
            _log.debug("a pass over %d texts failed: %s", len(trees), error)
        for place, (reply, each) in enumerate(due):
            if place in submitted_at:
                reply.go_on(submitted_at[place])
                continue
            try:
                submitted = each.speculator.submit(each.draft)
            except Exception as error:
                reply.go_on(error=error)
            else:
                reply.go_on(submitted)

    def _read_slice(self, reply: JoinedReply, *, awaited: bool) -> None:
        """Read on in a prompt; `awaited`: replies that are being written wait for it."""
        if not awaited:
            reply.go_on(MOST_SLICE_TOKENS)
            return
        began, count = self._clock(), self._slice_tokens
        reply.go_on(count)
        took_s = max(1e-6, self._clock() - began)
        wanted = int(count * min(2.0, SLICE_S / took_s))
        self._slice_tokens = min(MOST_SLICE_TOKENS, max(LEAST_SLICE_TOKENS, wanted))

    def _drop_ended(self) -> None:
        self._replies = [reply for reply in self._replies if not reply.over]
