"""The commands that wait for the engine, and what is remembered of cancellations."""

from __future__ import annotations

from specchat.engine.protocol.commands import Cancel, Load
from specchat.engine.server import command_queue
from specchat.engine.server.command_queue import CommandQueue


def test_a_cancellation_acts_at_once_and_until_it_is_forgotten() -> None:
    commands = CommandQueue()
    commands.receive(Cancel(3))
    commands.receive(Cancel())
    assert [commands.cancelled(id) for id in (3, None, 4)] == [True, True, False]
    commands.forget_cancel(3)
    commands.receive(Load())
    assert not any(commands.cancelled(id) for id in (3, None))


def test_cancellations_of_replies_that_nobody_asked_for_are_not_kept_for_ever() -> None:
    commands = CommandQueue()
    for id in range(3 * command_queue._MOST_CANCELLED):
        commands.receive(Cancel(id))
    commands.receive(Cancel(7))
    kept = [id for id in range(3 * command_queue._MOST_CANCELLED) if commands.cancelled(id)]
    assert len(kept) == command_queue._MOST_CANCELLED
    assert {kept[0], kept[-1]} == {7, 3 * command_queue._MOST_CANCELLED - 1}
