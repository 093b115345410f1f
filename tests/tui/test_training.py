"""A drafter trained beside the chat: paused, stopped, resumed, judged, used."""

from __future__ import annotations

import os

import msgspec
import pytest
from driving import driving, writing
from fake import stats_of
from trainer import REQUEST, WORSE, Trainer, begun

from specchat.cli.chat import _say_training_stopped
from specchat.config import load_catalog, settings_of
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Load
from specchat.tui.screens.trainings import TrainingScreen
from specchat.tui.state.chat import Background, Chat, set_aside, take_back
from specchat.tui.state.training import Training, TrainingChoices


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


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
        assert trainer.asked == [(*words, "--name=smol-hydra-2", "--threads=1", "--output=jsonl", "--stop-at-eof")]
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
        verdict = "quickest: smol-hydra-2 merged with suffix, 1.52 × plain, smol's default 1.32 ×"
        assert verdict in " ".join(screen.replace("│", " ").split()), "it may stand on two lines"
        learnt = "on texts it never learnt from: τ 1.00 → 1.70 by learning, in chains of 4"
        assert learnt in " ".join(screen.replace("│", " ").split())
        assert "after ' the sky': ' of' before, ' is' now; the target wrote ' is'" in " ".join(screen.split())
        if size[1] == 40:
            assert "1,200,000 1.70" in " ".join(screen.split())
        await d.pilot.press("u")
        await d.until("used from now on")
        load = d.link.last(Load).settings
        assert (load["drafter"], load["nodes"]) == ("merge", 8)
        assert load["method_options"] == {"hydra.weights": "smol-hydra-2", "merge.of": "suffix+hydra"}
        kept = settings_of(load_catalog().pair("smol"))
        assert (kept.drafter, kept.method_options["merge.of"]) == ("merge", "suffix+hydra")
        await d.pilot.press("escape")
        await d.settle()
        assert d.app.chat.background.training is None
        assert not (trainer.folder / "training.json").exists()


async def test_a_training_rests_while_a_reply_is_written(trainer):
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        assert await trainer.runs(d)
        rounds = await writing(d)
        await d.until("‖ learning 42 %")
        await d.pilot.pause(0.1)
        assert not await trainer.runs(d, within_s=0.5)
        await d.hear(ev.Finished(d.generates()[-1].id, "end", "", stats_of(rounds), 1.0))
        await d.until("▸ learning 42 %")
        assert await trainer.runs(d)


async def test_a_training_has_the_lowest_priority(trainer):
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        process = d.view.trainings.runner.process
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert os.getpgid(process.pid) == process.pid
        assert os.getsid(process.pid) == os.getsid(0), "Linux weighs sessions before priorities"


async def test_a_training_that_is_stopped_keeps_the_best_and_is_resumed(trainer):
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        await d.say("/train stop")
        await d.until("■ smol-hydra-2 stopped: /train")
        await d.say("/train")
        await d.until("the best is kept as smol-hydra-2, τ 1.61; /train resume goes on")
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
        d.view.prompt.clear()
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
        process = d.view.trainings.runner.process
    assert process.pid is None
    assert msgspec.json.decode((trainer.folder / "training.json").read_bytes(), type=TrainingChoices) == REQUEST


async def test_why_a_training_failed_is_said_in_one_line(trainer):
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        trainer.open_gate("specchat: not enough space in /cache: the states need 3.3 GB, 1.0 GB are free")
        await d.until(
            "smol-hydra-2 was not trained: not enough space in /cache: the states need 3.3 GB, 1.0 GB are free"
        )
        assert "✕ not trained: /train" in d.drawn(d.view.status)
        await d.say("/train")
        assert isinstance(d.app.screen, TrainingScreen)
        assert "✕ not enough space" in d.screen()
        assert "smol-hydra-2: hydra for smol" in d.screen()


async def test_a_verdict_does_not_disturb_who_is_writing(trainer):
    trainer.says(WORSE)
    async with driving(training=trainer.here) as d:
        await begun(d, trainer)
        d.view.prompt.write("half a thought")
        trainer.open_gate()
        await d.until("smol-hydra-2 is trained; /train shows what it is worth")
        assert "✓ smol-hydra-2 is trained: /train" in d.drawn(d.view.status)
        d.view.prompt.clear()
        await d.say("/train")
        screen = await d.until("smol's default stays the quickest: 1.32 × plain")
        assert "u uses" not in screen
        await d.pilot.press("u")
        assert d.app.chat.background.training.used is False


async def test_a_training_that_cannot_be_started_is_said(trainer):
    async with driving(training=trainer.here) as d:
        d.view.trainings.runner.command = lambda *words: ["/no/such/program"]
        await d.say("/train")
        await d.pilot.press("enter")
        await d.until("smol-hydra-2 was not trained: it could not be started: No such file or directory")


@pytest.mark.parametrize(("phase", "said"), [("stopping", True), ("stopped", True), ("done", False), ("failed", False)])
def test_leaving_says_how_to_go_on_with_a_training(capsys, phase, said):
    _say_training_stopped(Training(REQUEST, phase))
    assert ("the training of smol-hydra-2 was stopped; /train resume" in capsys.readouterr().out) == said


def test_a_training_goes_on_while_a_recording_is_played_in_place_of_the_chat():
    chat = Chat(background=Background(training=Training(REQUEST)))
    training = chat.background.training
    aside = set_aside(chat)
    assert chat.background.training is training
    chat.background.training = None
    take_back(chat, aside)
    assert chat.background.training is None, "its verdict was answered meanwhile"
