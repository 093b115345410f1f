"""What `/train` asks before a training, what it refuses, and what it remembers of an unfinished one."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import pytest
from driving import driving
from trainer import Trainer

from specchat.config import own_drafters_dir
from specchat.errors import ConfigError
from specchat.tui.screens.trainings import TrainForm
from specchat.tui.services.training_runner import TrainingRunner
from specchat.tui.state.chat import Chat

APP = SimpleNamespace(chat=Chat())


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


async def test_the_dialog_says_what_cannot_be_and_what_it_reads(trainer):
    async with driving(training=trainer.here) as d:
        trainer.on(d)
        await d.say("/train")
        d.app.screen.query_one("#tokens").value = "10"
        await d.until("✕ --tokens 10 is too few to learn from")
        await d.pilot.press("enter")
        assert isinstance(d.app.screen, TrainForm)
        for id, value, said in (("tokens", "many", "not a whole number"), ("hours", "long", "not a number")):
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
        await d.pilot.press(*["down"] * 3, *["backspace"] * 7, *"6000", "down", "backspace", *"0.5", "up", "enter")
        await d.until("42 %")
        assert {"--tokens=6000", "--hours=0.5"} < set(trainer.asked[0])


async def test_the_drafter_to_begin_with_is_asked_for_and_remembered(trainer):
    async with driving((80, 24), training=trainer.here) as d:
        trainer.on(d)
        await d.say("/train")
        await d.pilot.press("down", *"smol-hydra", "enter")
        await d.until("42 %")
        assert "--from=smol-hydra" in trainer.asked[0]
    runner = TrainingRunner(APP, trainer.folder / "training.json", ended=None)
    assert runner.unfinished().start == "smol-hydra"


def test_what_an_older_specchat_noted_of_a_training_begins_with_nothing(tmp_path):
    note = tmp_path / "training.json"
    note.write_text('{"pair":"smol","drafter":"hydra","prompts":"self","tokens":9000,"hours":0.0,"name":"mine"}')
    choices = TrainingRunner(APP, note, ended=None).unfinished()
    assert choices.start == ""
    assert not [word for word in choices.words(resume=True) if word.startswith("--from")]


async def test_a_name_that_is_taken_is_not_suggested(trainer):
    (own_drafters_dir() / "smol-hydra-2").mkdir(parents=True)
    async with driving(training=trainer.here) as d:
        await d.say("/train")
        assert d.app.screen.query_one("#name").value == "smol-hydra-3", "1 comes with specchat"


async def test_a_damaged_note_of_an_unfinished_training_is_named(trainer):
    (trainer.folder / "training.json").write_text('{"pair": 3}')
    async with driving(training=trainer.here) as d:
        for words in ("/train resume", "/train"):
            await d.say(words)
            await d.until("training.json holds no training")


def test_of_a_large_note_only_as_much_is_read_as_a_note_may_hold(tmp_path):
    file = tmp_path / "training.json"
    with file.open("wb") as note:
        note.truncate(64 << 20)
    runner = TrainingRunner(APP, file, ended=None)
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match="holds no training"):
            runner.unfinished()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


async def test_what_cannot_be_trained_is_said():
    async with driving() as d:
        await d.say("/train")
        await d.until("no drafter can be trained here: use `specchat train` where the engine runs")
        d.view.prompt.clear()
        await d.say("/train soon")
        await d.until("/train does not know 'soon'; /train, /train stop or /train resume")
