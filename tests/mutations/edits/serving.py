"""Edits that break the server: whose turn it is, and what of a reply is sent."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

SCHEDULER = "tests/serve/test_scheduler.py"

EDITS = (
    Mutation(
        "serving",
        "begins a reply whose client has left",
        "serve/scheduler.py",
        "        if ticket.left:\n            return\n",
        "",
        (SCHEDULER, "-k", "settings_are_changed"),
    ),
    Mutation(
        "serving",
        "keeps the tail of a reply to itself",
        "serve/ticket.py",
        "            case Finished():\n                self._say(event.tail)",
        "            case Finished():",
        (SCHEDULER, "-k", "held_back"),
    ),
    Mutation(
        "serving",
        "leaves who has left in the queue",
        "serve/scheduler.py",
        "            self._waiting.remove(ticket)",
        "            pass",
        (SCHEDULER, "-k", "full_queue_refuses"),
    ),
)
