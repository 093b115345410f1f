"""Stands for `specchat train` where the app starts one: says reports, waits for a gate, can be paused and stopped."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from driving import PATIENCE_S, Driver

from specchat.engine.protocol.events import GuessChange
from specchat.engine.protocol.training_report import Curve, Judged, MeasuredWay, Needed, Reached, Trained, encode_report
from specchat.errors import UsageError
from specchat.tui.screens.trainings import TrainForm
from specchat.tui.services.training_runner import TrainingHere
from specchat.tui.state.training import TrainingChoices

REQUEST = TrainingChoices("smol", "hydra", "self", 400_000, 0.0, "smol-hydra-2")

BEGIN = [
    Needed(2_700_000, 3_300_000_000, 1_100_000_000),
    Reached("loading", 0, 0, "reading weights"),
    Reached("replies", 400_000, 400_000, "3,125 texts"),
    Reached("states", 49, 49),
    Reached("learning", 0.2, 1.0, "", 900.0, 1.31, [0.3, 0.4]),
    Reached("learning", 0.42, 1.0, "", 700.0, 1.61, [0.45, 0.45, 0.5]),
]
TRAINED = Trained("smol-hydra-2", "hydra", "t", "/drafters/smol-hydra-2", 5_300_000, True, 1_200_000, 1.7, [0.5, 0.4],
                  Curve([0, 400_000, 1_200_000], [1.0, 1.4, 1.7]),
                  [GuessChange(7, " the sky", " of", " is", " is")])  # fmt: skip
SETTINGS = {"drafter": "merge", "nodes": 8, "hydra.weights": "smol-hydra-2", "merge.of": "suffix+hydra"}
WAYS = [MeasuredWay("plain", 1.0, tau=1.0), MeasuredWay("default", 1.32, 1.2, 1.5, 1.6)]
BETTER = Judged([*WAYS, MeasuredWay("merged with suffix", 1.52, 1.4, 1.6, 2.1)], "merged with suffix", SETTINGS)
WORSE = Judged([*WAYS, MeasuredWay("merged with suffix", 1.12, 1.0, 1.2, 2.1)])

TRAINING = """
import os, sys, threading, time
from pathlib import Path
folder = Path(sys.argv[1])
def say(name):
    sys.stdout.buffer.write((folder / name).read_bytes())
    sys.stdout.buffer.flush()
def listen():
    while os.read(0, 100): pass
    say("kept")
    print("stopped; what was done is kept", file=sys.stderr)
    os._exit(130)
threading.Thread(target=listen, daemon=True).start()
print("chatter of a library")
say("begin")
while not (folder / "gate").exists():
    (folder / "alive").write_text(str(time.monotonic()))
    time.sleep(0.02)
if said := (folder / "gate").read_text():
    print(said, file=sys.stderr)
    sys.exit(1)
say("end")
"""


@dataclass
class Cost:
    disk_bytes: int = 3_300_000_000
    seconds: float = 1700.0
    free_bytes: int = 41_000_000_000


class Trainer:
    """Stands for `specchat train`: a script that says the reports in a folder, and waits for its gate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, ...]] = []
        self.here = TrainingHere(self.estimate, folder / "training.json")
        self.says(BETTER)
        (folder / "begin").write_bytes(b"".join(map(encode_report, BEGIN)))
        (folder / "kept").write_bytes(encode_report(msgspec.structs.replace(TRAINED, complete=False, tau=1.61)))

    def estimate(self, request: TrainingChoices) -> Cost:
        if request.tokens < 5200:
            raise UsageError(f"--tokens {request.tokens} is too few to learn from; at least 5200")
        return Cost(disk_bytes=request.tokens * 8250, seconds=request.tokens / 235)

    def says(self, judged: Judged) -> None:
        (self.folder / "end").write_bytes(encode_report(TRAINED) + encode_report(judged))

    def on(self, d: Driver) -> None:
        def command(*words: str) -> list[str]:
            self.asked.append(words)
            return [sys.executable, "-c", TRAINING, str(self.folder)]

        d.view.trainings.runner.command = command

    def open_gate(self, error: str = "") -> None:
        (self.folder / "said").write_text(error)
        (self.folder / "said").rename(self.folder / "gate")

    async def runs(self, d: Driver, within_s: float = PATIENCE_S) -> bool:
        """Whether it does something within this time; on a busy machine its low priority makes it wait."""
        alive = self.folder / "alive"
        before = alive.read_text() if alive.exists() else ""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            await d.pilot.pause(0.02)
            if alive.exists() and alive.read_text() not in ("", before):
                return True
        return False


async def begun(d: Driver, trainer: Trainer) -> None:
    trainer.on(d)
    await d.say("/train")
    assert isinstance(d.app.screen, TrainForm)
    await d.pilot.press("enter")
    await d.until("learning 42 %")
