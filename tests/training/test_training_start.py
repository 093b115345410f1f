"""A training that begins with the weights of a drafter: it begins as good as that, and refuses what does not fit."""

from __future__ import annotations

import dataclasses
import os
import shutil
from functools import partial

import pytest
import torch
from training_kit import V, subject, target

from specchat.config import own_drafters_dir
from specchat.config.trained_drafters import WEIGHTS, read_drafter
from specchat.errors import TrainingError, UsageError
from specchat.models.draft_heads import FAMILIES
from specchat.models.draft_heads.loading import load_network, read_tensors, read_tokens
from specchat.training import job
from specchat.training import job as first_network
from specchat.training import texts as text_writing
from specchat.training.corpus import shared_with
from specchat.training.fitting import Fitting
from specchat.training.job import Job, check_start, data_of, sizes_asked_for
from specchat.training.losses import Acceptance, acceptance, columns_of, tree_loss
from specchat.training.training_request import TrainingRequest

PROMPTS = [f"w{a} w{b} w5 w{a}" for a in range(3, 12) for b in range(20, 28)]
ITS_OWN = {"pair": "tiny", "drafter": "hydra", "tokens": 1500, "hours": 0.0}


def shorten(monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 4)
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 24)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def of_tiny():
    return subject(target(forgetful=True))


def training(whose, folder):
    """A function that trains a drafter on the prompts, which are written into the folder."""
    file = folder / "prompts.txt"
    file.write_text("\n".join(PROMPTS))

    def run(name, start=None, tell=lambda stage: None, whose=whose, **changes):
        begin = start.name if start else ""
        request = TrainingRequest(**{**ITS_OWN, "prompts": str(file), "name": name, "start": begin, **changes})
        return Job(request, whose, tell, start=start).run()

    return run


@pytest.fixture
def train(of_tiny, tmp_path):
    return training(of_tiny, tmp_path)


@pytest.fixture(scope="module")
def home_with_older(of_tiny, tmp_path_factory):
    """A home in which a drafter was trained."""
    home = tmp_path_factory.mktemp("older") / "home"
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setenv("SPECCHAT_HOME", str(home))
        training(of_tiny, home.parent)("older")
    return home


@pytest.fixture
def older(home_with_older):
    """That drafter, in the test's own home."""
    shutil.copytree(home_with_older, os.environ["SPECCHAT_HOME"], dirs_exist_ok=True)
    return read_drafter(own_drafters_dir() / "older", ("hydra",))


def measured(drafter, of_tiny, monkeypatch, train):
    """τ of a drafter's file on the texts that the next training holds out."""
    found = []

    class Stopped(Exception):
        pass

    def stop(self, tell):
        found.append(self)
        raise Stopped

    monkeypatch.setattr(Fitting, "run", stop)

    with pytest.raises(Stopped):
        train("measuring")
    fitting = found[0]
    shared = shared_with(of_tiny.model, fitting._corpus, V)
    network = load_network(drafter.method, drafter.options, drafter.weights, lambda tokens: shared)
    total = Acceptance((), 0)
    for batch in fitting._corpus.unseen(16):
        with torch.autocast("cpu", torch.bfloat16):
            total = total.plus(acceptance(network, batch, columns_of(shared.tokens, V), 4))
    return total.tau


def test_it_begins_with_the_drafters_own_figures_and_never_ends_below_them(older, train, of_tiny, monkeypatch):
    def spoil(self, batch):
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.normal_()

    monkeypatch.setattr(Fitting, "_learn", spoil)
    again = train("again", older)
    curve = again.figures["curve_tau"]
    assert curve[0] > older.figures["curve_tau"][0] + 0.3, "random weights guess worse"
    assert max(curve[1:]) < curve[0] - 0.2, "they are spoilt"
    assert again.figures["chain_tau_held_out"] == curve[0]
    wanted = {name: tuple(t.shape) for name, t in load(older, of_tiny).state_dict().items()}
    for name, tensor in read_tensors(again.weights, wanted).items():
        torch.testing.assert_close(tensor, read_tensors(older.weights, wanted)[name], rtol=1e-2, atol=1e-3)
    assert curve[0] == pytest.approx(measured(older, of_tiny, monkeypatch, train), abs=5e-4)


def test_the_last_stage_compares_trees_with_those_of_the_drafter_that_it_begins_with(older, train, monkeypatch):
    seen = []

    def loss(network, *about, reference, **more):
        seen.append([tensor.clone() for tensor in reference.state_dict().values()])
        assert reference.shared is network.shared, "the head of the target is there once"
        return tree_loss(network, *about, reference=reference, **more)

    monkeypatch.setattr(job, "tree_loss", loss)
    made = train("last", older, loss="tree")
    assert made.figures["chain_tau_held_out"] >= made.figures["curve_tau"][0]
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[-1], strict=True)), "it stays as it was"
    assert len(seen) > 1


def load(drafter, of_tiny):
    class AnyShared:
        tokens = torch.empty(0)

    return load_network(drafter.method, drafter.options, drafter.weights, lambda tokens: AnyShared())


def test_a_continued_training_gets_better_than_its_start(train):
    short = train("short", tokens=1000)
    longer = train("longer", short)
    assert longer.figures["chain_tau_held_out"] > longer.figures["curve_tau"][0] + 0.1


def test_the_drafters_folder_says_what_it_began_with(older, train):
    again = train("again", older)
    assert again == read_drafter(own_drafters_dir() / "again", ("hydra",))
    assert again.data["from"] == "older"
    assert again.data["from_sha256"] == older.sha256
    assert again.data["from_reply_tokens"] == older.data["reply_tokens"] > 0
    assert "--from older --tokens 1500" in again.data["command"]
    third = train("third", again)
    assert third.data["from_reply_tokens"] == older.data["reply_tokens"] + again.data["reply_tokens"]
    assert "from" not in older.data
    assert data_of(dataclasses.replace(older, data={"reply_tokens": "many"}))["from_reply_tokens"] == 0


def test_resume_goes_on_with_the_start_and_refuses_another(older, train, of_tiny):
    def interrupt(stage):
        if stage.name == "learning" and stage.done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("again", older, interrupt)
    early = read_drafter(own_drafters_dir() / "again", ("hydra",))
    other = dataclasses.replace(older, sha256="0" * 64)
    with pytest.raises(TrainingError, match=r"made with from = older \(\w{12}\), not older \(000000000000\)"):
        train("again", other, resume=True)
    with pytest.raises(TrainingError, match=r"made with from = older \(\w{12}\), not None"):
        train("again", resume=True)
    ended = train("again", older, resume=True)
    assert ended.figures["curve_tau"][: len(early.figures["curve_tau"])] == early.figures["curve_tau"]
    assert ended.figures["tokens_seen"] > early.figures["tokens_seen"]
    assert ended.data["from"] == "older"


def test_a_start_of_another_method_target_or_size_is_refused_before_anything_is_written(older, train, of_tiny):
    for start, whose, said in (
        (
            dataclasses.replace(older, method="eagle"),
            of_tiny,
            "--from 'older' is a 'eagle', and --drafter says 'hydra'",
        ),
        (older, subject(of_tiny.model, "cd" * 32), "was trained for other weights of tiny; leave out --from"),
        (
            dataclasses.replace(older, options={**older.options, "inner": 96}),
            of_tiny,
            "has inner = 96, and 32 is train",
        ),
        (dataclasses.replace(older, options={**older.options, "taps": [0]}), of_tiny, r"has taps = \[0\], and \["),
        (dataclasses.replace(older, options={"inner": 64}), of_tiny, "has no hidden"),
    ):
        with pytest.raises(UsageError, match=said) as refused:
            train("again", start, whose=whose)
        assert "\n" not in str(refused.value)
    sizes = load(older, of_tiny).sizes
    check_start(older, "hydra", sizes, of_tiny.checksum)
    shutil.rmtree(older.folder)


@pytest.mark.parametrize(
    ("method", "chosen", "other", "flag"),
    [
        ("eagle", {"form": "fspad"}, {"form": "fs"}, "--form"),
        ("draft_model", {"depths": "1,3"}, {"depths": "1,2"}, "--depths"),
        ("mtp", {"ensemble": 2}, {"ensemble": 3}, "--ensemble"),
    ],
)
def test_what_is_left_open_is_as_in_the_drafter_that_it_begins_with(older, of_tiny, method, chosen, other, flag):
    request = TrainingRequest("tiny", method, "self", 6000, 0.0, "again")
    asked = partial(sizes_asked_for, FAMILIES[method].load().sizes_for(of_tiny.model.network.shape, (0, 3)))
    sizes = asked(dataclasses.replace(request, **chosen))
    start = dataclasses.replace(older, method=method, options=sizes.options())
    assert asked(request, start) == asked(dataclasses.replace(request, **chosen), start) == sizes
    check_start(start, method, asked(request, start), of_tiny.checksum)
    with pytest.raises(UsageError, match=f"is trained; leave out {flag}, which is as in older, or --from"):
        check_start(start, method, asked(dataclasses.replace(request, **other), start), of_tiny.checksum)


def test_tokens_that_can_be_guessed_are_taken_in_turn_from_both_trainings(older, train, of_tiny, monkeypatch):
    assert first_network.HEAD_TOKENS == 8192
    one, other = torch.tensor([5, 9, 3, 40]), torch.tensor([9, 7, 5])
    corpus = type("Corpus", (), {"frequent_tokens": lambda self, n: one[:n], "occurring_tokens": lambda self: one})()
    assert shared_with(of_tiny.model, corpus, 8).tokens.tolist() == [5, 9, 3, 40]
    assert shared_with(of_tiny.model, corpus, 8, other).tokens.tolist() == [5, 9, 7, 3, 40]
    shared = shared_with(of_tiny.model, corpus, 3, other)
    assert shared.tokens.tolist() == [5, 9, 7]
    assert torch.equal(shared.head, of_tiny.model.head_rows([5, 9, 7]).float())
    monkeypatch.setattr(first_network, "HEAD_TOKENS", 20)
    again = train("again", older)
    assert len(read_tokens(again.folder / WEIGHTS)) == 20
