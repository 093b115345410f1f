"""Streams of an engine that are right, for fuzzers to damage."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
from fake import LOSS, SETTINGS, hello, ready, rounds_of, started, stats_of

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Message

TEXT = "A *short* answer:\n\n```python\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nDone. 你好 🎉\n"
HEADER = ev.Header(ev.PROTOCOL, "0", "2026-01-01T00:00:00Z")


def reply(id: int, messages: Sequence[Message]) -> list[ev.Event]:
    """One whole reply."""
    rounds = rounds_of(TEXT, id=id)
    end = ev.Finished(id, "end", " tail", stats_of(rounds), rounds[-1].at_s + 0.1)
    return [started(list(messages), id), ev.Prefilled(id, 3, 9, 0.0), ev.Prefilled(id, 9, 9, 0.0), *rounds, end]


def before_ready() -> list[ev.Event]:
    """What an engine says until it has a pair."""
    return [hello(), ev.Loading("fetch", "weights", 1, 9, 3.5), ev.Loading("read", "weights", 9, 9), ready()]


def others() -> list[ev.Event]:
    """Every event that belongs to no reply."""
    changed = ev.Changed({**SETTINGS, "width": 3, "method_options": {"prompt_lookup.max_ngram": 4}}, LOSS)
    totals = ev.Totals(1, stats_of(rounds_of(TEXT)))
    failed = [ev.Failed("UsageError", "no", 2, None, during) for during in ("change", "count", "protocol")]
    return [
        changed,
        ev.Counted(1, 12, 8192),
        ev.Learnt("smol-hydra", True, 2, 300, 300, 9, 0, 200, [90, 40], [99, 50], 6_000_000),
        ev.Compared(1, 3, "a", "b", 0.1, 0.2, True),
        ev.Redoing(2, 5, 9),
        ev.WouldBe(
            2, ev.RedoneRounds(3, 7, 9, 0.01), ev.RedoneRounds(2, 7, 12, 0.02), True, True, round=rounds_of(TEXT)[0]
        ),
        totals,
        ev.Notice("so it is"),
        *failed,
    ]


def recording() -> list[ev.Event]:
    """A recording of two replies."""
    first = [Message("system", "be brief"), Message("user", "hi")]
    second = [*first, Message("assistant", TEXT + " tail"), Message("user", "and?")]
    return [HEADER, ready(), *itertools.chain(reply(1, first), reply(2, second))]
