"""A drafter trained beside the chat: asked for, paused, stopped, resumed, judged, used."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from driving import Driver, driving, writing
from fake import stats_of

from specchat.config import load_catalog, own_drafters_dir, settings_of
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Load
from specchat.engine.protocol.training_report import Curve, Judged, MeasuredWay, Needed, Reached, Trained, encode_report
from specchat.errors import UsageError
from specchat.tui.control.trainings import TrainingHere
from specchat.tui.screens.train_form import TrainForm
from specchat.tui.screens.training import TrainingScreen
from specchat.tui.state.chat_aside import set_aside, take_back
from specchat.tui.state.session import Chat
from specchat.tui.state.training import Training, TrainingChoices

REQUEST = TrainingChoices("smol", "hydra", "self", 400_000, 0.0, "smol-hydra")

BEGIN = [
    Needed(2_700_000, 3_300_000_000, 1_100_000_000),
    Reached("loading", 0, 0, "reading weights"),
    Reached("replies", 400_000, 400_000, "3,125 texts"),
    Reached("states", 49, 49),
    Reached("learning", 0.2, 1.0, "", 900.0, 1.31, [0.3, 0.4]),
    Reached("learning", 0.42, 1.0, "", 700.0, 1.61, [0.45, 0.45, 0.5]),
]
TRAINED = Trained("smol-hydra", "hydra", "t", "/drafters/smol-hydra", 5_300_000, True, 1_200_000, 1.7, [0.5, 0.4],
                  Curve([0, 400_000, 1_200_000], [1.0, 1.4, 1.7]))  # fmt: skip
SETTINGS = {"drafter": "merge", "nodes": 8, "hydra.weights": "smol-hydra", "merge.of": "suffix+hydra"}
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

        d.app.control.trainings.runner.command = command

    def open_gate(self, error: str = "") -> None:
        (self.folder / "said").write_text(error)
        (self.folder / "said").rename(self.folder / "gate")

    async def runs(self, d: Driver) -> bool:
        """Whether it does something within half a second."""
        alive = self.folder / "alive"
        before = alive.read_text() if alive.exists() else ""
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            await d.pilot.pause(0.02)
            if alive.exists() and alive.read_text() not in ("", before):
                return True
        return False


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


async def begun(d: Driver, trainer: Trainer) -> None:
    trainer.on(d)
    await d.say("/train")
    assert isinstance(d.app.screen, TrainForm)
    await d.pilot.press("enter")
    await d.until("learning 42 %")


@pytest.mark.parametrize(
    ("size", "corner"), [((120, 40), "▸ learning 42 % · τ 1.61 · 12 min"), ((80, 24), "▸ 42 % · τ 1.61")]
)
async def test_a_drafter_is_trained_while_the_chat_goes_on_and_its_verdict_is_used(trainer, size, corner):
    async with driving(size, training=trainer.here) as d:
        trainer.on(d)
        await d.say("/train")
        screen = await d.until("about 28 min of one core")
        assert "3.3 GB of disk; 41.0 GB are free" in " ".join(screen.replace("│", " ").split())
        await d.pilot.press("enter")
        await d.until(corner)
        words = ("train", "smol", "--drafter=hydra", "--prompts=self", "--tokens=400000", "--hours=0")
        assert trainer.asked == [(*words, "--name=smol-hydra", "--threads=1", "--output=jsonl", "--stop-at-eof")]
        await d.say("/train")
        screen = await d.until("12 min left")
        assert "✓ replies 3,125 texts" in " ".join(screen.split())
        assert "by depth 0.45 0.45 0.50" in " ".join(screen.split())
        await d.pilot.press("escape")
        await d.say("hi")
        await d.reply("fine")
        trainer.open_gate()
        screen = await d.until("use it from now on?")
        assert "merged with suffix 1.52 1.40–1.60 2.10" in " ".join(screen.split())
        assert "quickest: smol-hydra merged with suffix, 1.52 × plain, smol's default 1.32 ×" in " ".join(
            screen.split()
        )
        if size[1] == 40:
            assert "1,200,000 1.70" in " ".join(screen.split())
        await d.pilot.press("u")
        await d.until("used from now on")
        load = d.link.last(Load).settings
        assert (load["drafter"], load["nodes"]) == ("merge", 8)
        assert load["method_options"] == {"hydra.weights": "smol-hydra", "merge.of": "suffix+hydra"}
        kept = settings_of(load_catalog().pair("smol"))
        assert (kept.drafter, kept.method_options["merge.of"]) == ("merge", "suffix+hydra")
        await d.pilot.press("escape")
        await d.settle()
        assert d.app.chat.training is None
        assert not (trainer.folder / "training.json").exists()


async def test_a_training_rests_while_a_reply_is_written(trainer):
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        assert await trainer.runs(d)
        rounds = await writing(d)
        await d.until("‖ learning 42 %")
        await d.pilot.pause(0.1)
        assert not await trainer.runs(d)
        await d.hear(ev.Finished(d.generates()[-1].id, "end", "", stats_of(rounds), 1.0))
        await d.until("▸ learning 42 %")
        assert await trainer.runs(d)


async def test_a_training_has_the_lowest_priority(trainer):
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        process = d.app.control.trainings.runner._process
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert os.getpgid(process.pid) == process.pid
        assert os.getsid(process.pid) == os.getsid(0), "Linux weighs sessions before priorities"


async def test_a_training_that_is_stopped_keeps_the_best_and_is_resumed(trainer):
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        await d.say("/train stop")
        await d.until("■ smol-hydra stopped: /train")
        await d.say("/train")
        await d.until("the best is kept as smol-hydra, τ 1.61; /train resume goes on")
        await d.pilot.press("escape")
        await d.say("/train stop")
        await d.until("no drafter is being trained")
    async with driving(training=trainer.here) as d:
        trainer.on(d)
        await d.say("/train resume")
        await d.until("learning 42 %")
        assert "--resume" in trainer.asked[-1]
        assert set(trainer.asked[-1]) - {"--resume"} == set(trainer.asked[0])
        await d.say("/train resume")
        await d.until("one drafter is being trained already")
        d.app.views.prompt.clear()
        trainer.open_gate()
        await d.until("use it from now on?")
        await d.pilot.press("escape")
        await d.say("/train resume")
        await d.until("no training is unfinished")


async def test_a_paused_training_ends_with_the_app_and_nothing_is_lost(trainer):
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        await writing(d)
        await d.until("‖ learning 42 %")
        process = d.app.control.trainings.runner._process
    assert process.pid is None
    assert msgspec.json.decode((trainer.folder / "training.json").read_bytes(), type=TrainingChoices) == REQUEST


async def test_why_a_training_failed_is_said_in_one_line(trainer):
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        trainer.open_gate("specchat: not enough space in /cache: the states need 3.3 GB, 1.0 GB are free")
        await d.until("smol-hydra was not trained: not enough space in /cache: the states need 3.3 GB, 1.0 GB are free")
        assert "✕ not trained: /train" in d.drawn(d.app.views.status)
        await d.say("/train")
        assert isinstance(d.app.screen, TrainingScreen)
        assert "✕ not enough space" in d.screen()


async def test_a_verdict_does_not_disturb_who_is_writing(trainer):
    trainer.says(WORSE)
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        d.app.views.prompt.write("half a thought")
        trainer.open_gate()
        await d.until("smol-hydra is trained; /train shows what it is worth")
        assert "✓ smol-hydra is trained: /train" in d.drawn(d.app.views.status)
        d.app.views.prompt.clear()
        await d.say("/train")
        screen = await d.until("smol's default stays the quickest: 1.32 × plain")
        assert "u uses" not in screen
        await d.pilot.press("u")
        assert d.app.chat.training.used is False


async def test_the_dialog_says_what_cannot_be_and_what_it_reads(trainer):
    async with driving(training=trainer.here) as d:
        trainer.on(d)
        await d.say("/train")
        d.app.screen.query_one("#tokens").value = "10"
        await d.until("✕ --tokens 10 is too few to learn from")
        await d.pilot.press("enter")
        assert isinstance(d.app.screen, TrainForm)
        for id, value, said in (("tokens", "many", "no whole number"), ("hours", "long", "no number")):
            before = d.app.screen.query_one(f"#{id}").value
            d.app.screen.query_one(f"#{id}").value = value
            await d.until(said)
            d.app.screen.query_one(f"#{id}").value = "9000" if id == "tokens" else before
        d.app.screen.query_one("#prompts").value = "chats"
        await d.until("What you wrote in your chats is read")
        d.app.screen.query_one("#drafter").value = "eagle"
        await d.pilot.pause()
        assert d.app.screen.query_one("#name").value == "smol-eagle"
        await d.pilot.press("enter")
        await d.until("learning 42 %")
        assert {"--yes", "--drafter=eagle", "--tokens=9000", "--name=smol-eagle"} < set(trainer.asked[0])


async def test_the_dialog_is_filled_in_with_keys(trainer):
    async with driving((80, 24), training=trainer.here) as d:
        trainer.on(d)
        await d.say("/train")
        await d.pilot.press("down", "down", *["backspace"] * 7, *"6000", "down", "backspace", *"0.5", "up", "enter")
        await d.until("42 %")
        assert {"--tokens=6000", "--hours=0.5"} < set(trainer.asked[0])


async def test_a_training_that_cannot_be_started_is_said(trainer):
    async with driving(training=trainer.here) as d:
        d.app.control.trainings.runner.command = lambda *words: ["/no/such/program"]
        await d.say("/train")
        await d.pilot.press("enter")
        await d.until("smol-hydra was not trained: it could not be started: No such file or directory")


def test_a_training_goes_on_while_a_recording_is_played_in_place_of_the_chat():
    chat = Chat(training=Training(REQUEST))
    training = chat.training
    aside = set_aside(chat)
    assert chat.training is training
    chat.training = None
    take_back(chat, aside)
    assert chat.training is None, "its verdict was answered meanwhile"


async def test_a_name_that_is_taken_is_not_suggested(trainer):
    (own_drafters_dir() / "smol-hydra").mkdir(parents=True)
    async with driving(training=trainer.here) as d:
        await d.say("/train")
        assert d.app.screen.query_one("#name").value == "smol-hydra-2"


async def test_a_damaged_note_of_an_unfinished_training_is_named(trainer):
    (trainer.folder / "training.json").write_text('{"pair": 3}')
    async with driving(training=trainer.here) as d:
        for words in ("/train resume", "/train"):
            await d.say(words)
            await d.until("training.json holds no training")


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        ("/train", {}, "no drafter can be trained here: use `specchat train` where the engine runs"),
        ("/train soon", {}, "/train soon says nothing; /train, /train stop or /train resume"),
    ],
)
async def test_what_cannot_be_trained_is_said(words, options, said):
    async with driving(**options) as d:
        await d.say(words)
        await d.until(said)
