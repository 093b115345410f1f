"""What a drafter may do besides drafting: keep a state, work while the engine is idle."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from specchat.core.drafting_networks import Learnt


@runtime_checkable
class KeepsState(Protocol):
    """A drafter that keeps what it has learnt from one session to the next.

    Its state is saved when a reply ends, after idle work and when the engine leaves, for each target and name.
    """

    def save_state(self) -> bytes:
        """What it has learnt; empty if it has learnt nothing. The same state gives the same bytes."""

    def restore_state(self, state: bytes) -> None:
        """Go on from what was saved, or from nothing where that is empty.

        Raises:
            ValueError: this was not saved by such a drafter.
        """


@runtime_checkable
class IdleWorker(Protocol):
    """A drafter that can use the time in which the engine is idle."""

    def idle(self, deadline: float) -> bool:
        """Work until `time.monotonic()` reaches the deadline; whether there is more to do. Never called in a reply."""


@runtime_checkable
class LearnsFromReplies(KeepsState, IdleWorker, Protocol):
    """A drafter that learns from the user's replies, where the user wants that. Its state is large, so that it is saved
    after idle work and when the engine leaves, not after every reply."""

    def learn(self, wanted: bool) -> None:
        """Learn from replies from now on, or no longer; at first it does not. What was learnt stays in use."""

    def reply_ended(self) -> None:
        """A reply is over, and no command waits: what takes time may be done now."""

    @property
    def learnt(self) -> Learnt:
        """What it has learnt so far."""
