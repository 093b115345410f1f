"""Damaged reports of a training never crash the app: what comes through the decoder can be drawn at any size."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from specchat.engine.protocol.text import steers
from specchat.engine.protocol.training_report import (
    Curve,
    Judged,
    MeasuredWay,
    Needed,
    Reached,
    Report,
    Trained,
    decode_report,
    encode_report,
)
from specchat.tui.state.training import Training, TrainingChoices, short_text, training_lines
from specchat.tui.text.cells import width_of
from tests.fuzz.message_mutations import mutated

ATTEMPTS = 60

_PHASES = ("running", "paused", "stopping", "done", "stopped", "failed")
_REPORTS: list[Report] = [
    Needed(2_700_000, 3_300_000_000, 1_100_000_000),
    Reached("loading", 0, 0, "reading\n\x1b[31mweights"),
    Reached("states", 3.5, 49, "", 12.0),
    *(Reached("learning", 0.1 * step, 1.0, "", 60.0, 1 + 0.1 * step, [0.4, 0.5]) for step in range(5)),
    Trained("mine", "hydra", "t", "/mine", 5, True, 900, 1.4, [0.4], Curve([0, 400, 900], [1.0, 1.2, 1.4])),
    Judged([MeasuredWay("plain", 1.0), MeasuredWay("alone", 1.4, 1.2, 1.6, 1.9)], "alone", {"drafter": "hydra"}),
]


def attempt(seed: int, folder: Path) -> None:
    """One training, drawn after every report at some size."""
    rng = random.Random(seed)
    training = Training(TrainingChoices("smol", "hydra", "self", 9000, 0.0, "mine"), problem="no\x07 disk")
    for line in mutated([encode_report(report) for report in _REPORTS], rng):
        try:
            training.apply(decode_report(line))
        except msgspec.DecodeError:
            continue
        training.phase = rng.choice(_PHASES)
        width, height = rng.randint(1, 130), rng.randint(1, 40)
        drawn = training_lines(training, width, height)
        assert all(width_of(shown) <= width for shown in drawn), f"a line is wider than {width}"
        texts = [text for shown in drawn for text, _ in shown] + [short_text(training, wide=rng.random() < 0.5)[0]]
        assert not any(steers(text) or "\n" in text for text in texts), "the screen is steered from outside"
