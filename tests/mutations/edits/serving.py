"""Edits that break the server: whose turn it is, and what of a reply is sent."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

SCHEDULER = "tests/serve/test_scheduler.py"

EDITS = (
    Mutation(
        "serving",
        "begins a reply whose client has left",
        "Scheduler._write",
        "if ticket.left:\n    return",
        "pass",
        (SCHEDULER, "-k", "settings_are_changed"),
    ),
    Mutation(
        "serving",
        "keeps the tail of a reply to itself",
        "Ticket.hear",
        "self._say(event.tail)",
        "pass",
        (SCHEDULER, "-k", "held_back"),
    ),
    Mutation(
        "serving",
        "leaves who has left in the queue",
        "Scheduler._leave",
        "self._waiting.remove(ticket)",
        "pass",
        (SCHEDULER, "-k", "full_queue_refuses"),
    ),
)
