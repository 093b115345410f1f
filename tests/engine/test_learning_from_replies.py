"""The engine keeps a trained drafter's learning: on and off, over restarts, after damage, and until it is forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contracts.kit import Letters, collect, converse
from contracts.models import V, shared_network
from contracts.tiny_networks import tiny_trained, trained_resources
from msgspec import structs

from specchat.config import state_dir
from specchat.config.drafter_states import kept_states
from specchat.config.trained_drafters import NO_TRAINED, TrainedDrafters
from specchat.engine.server import kept_drafters
from specchat.engine.server.kept_drafters import KeptDrafters, learning_report
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.settings import Settings
from specchat.training.learning_network import LearningNetwork

NAME = "hydra-32-3-61-0.67"
SETTINGS = {"drafter": "hydra", "policy": "chain", "controller": "fixed", "nodes": 3, "depth": 3, "width": 1}


class Session:
    """An engine's pair over one run: a tiny target, a conversation whose drafters are kept, and what was said."""

    def __init__(self, learn=True, **settings):
        target = ReferenceModel(shared_network("llama"), 256)
        trained = TrainedDrafters("tiny", (tiny_trained("hydra", target),))
        self.said: list[str] = []
        self.kept = KeptDrafters(lambda: "ab" * 32, self.said.append)
        resources = trained_resources(trained=trained).keeping(self.kept.keep)
        settings = {**SETTINGS, "max_tokens": 24, "learn": learn, **settings}
        self.conversation = converse(target, vocabulary=Letters(V), resources=resources, **settings)
        self.kept.learn(learn)
        self.trained = trained

    def reply(self):
        tokens = collect(self.conversation.reply([3, 5, 9, 5, 3, 7], 7)).tokens
        self.kept.replied()
        return tokens

    def rest(self):
        self.kept.work(lambda: False)

    def learnt(self):
        return self.report(forget=False)

    def report(self, forget):
        return learning_report(self.conversation, self.trained, self.kept, forget)


def state_file():
    (file,) = state_dir().glob("drafters/*/*/state.bin")
    return file


def test_what_a_drafter_learns_is_reported_and_there_after_a_restart():
    first = Session()
    first.reply()
    assert first.learnt().updates == 0, "nothing is learnt before the engine is idle"
    assert not kept_states(), "a reply's end does not wait for the disk"
    first.rest()
    report = first.learnt()
    assert (report.replies, report.drafter, report.learning, report.why) == (1, NAME, True, "")
    assert report.updates > 0
    assert 0 < report.chains <= report.tokens
    assert report.disk_bytes == state_file().stat().st_size > 0

    second = Session()
    assert report.judged
    assert second.learnt() == structs.replace(report, judged=[]), "replies are told of by the engine that wrote them"
    second.reply()
    second.rest()
    assert second.learnt().replies == 2
    assert second.said == []


def test_a_request_interrupts_learning_which_goes_on_when_the_engine_is_idle_again(monkeypatch):
    session = Session()
    session.reply()
    monkeypatch.setattr(kept_drafters, "SLICE_S", 0.0)
    asked = iter([False, False, True])
    session.kept.work(lambda: next(asked))
    assert session.kept.due
    began = session.learnt().updates
    session.rest()
    assert session.learnt().updates > began
    assert not session.kept.due


def test_idle_time_comes_in_slices_and_ends_soon_after_a_request():
    session = Session()
    session.reply()
    session.kept.work(lambda: True)
    assert session.learnt().updates == 0
    assert session.kept.due, "it did not learn all there is"


def test_a_damaged_file_is_told_in_one_line_and_the_original_weights_draft():
    plain = Session(learn=False).reply()
    first = Session()
    first.reply()
    first.rest()
    state_file().write_bytes(state_file().read_bytes()[:-100])
    second = Session()
    assert second.reply() == plain
    assert len(second.said) == 1
    assert "\n" not in second.said[0]
    assert f"drafter {NAME}: it starts with nothing learnt" in second.said[0]
    assert second.learnt().replies == 1


def test_what_was_learnt_by_other_weights_is_not_used(monkeypatch):
    first = Session()
    first.reply()
    first.rest()
    made = LearningNetwork
    monkeypatch.setattr(
        "contracts.tiny_networks.LearningNetwork",
        lambda target, trained, tokens: made(target, replace(trained, sha256="12" * 32), tokens),
    )
    second = Session()
    assert "learnt from other weights than those that are here now" in second.said[0]
    assert second.learnt().replies == 0


def test_forgetting_erases_the_file_and_what_drafts():
    session = Session()
    session.reply()
    session.rest()
    size = session.learnt().disk_bytes
    report = session.report(forget=True)
    assert report.freed_bytes == size
    assert (report.replies, report.disk_bytes) == (0, 0)
    assert kept_states() == {}
    session.kept.save()
    assert kept_states() == {}, "nothing comes back"
    assert session.report(forget=True).freed_bytes == 0


def test_off_keeps_nothing_and_what_was_learnt_stays_in_use():
    session = Session()
    session.reply()
    session.rest()
    session.kept.learn(False)
    before = session.learnt()
    session.reply()
    session.rest()
    assert session.learnt() == before


def test_a_reply_apart_is_not_learnt_from():
    session = Session()
    with session.conversation.apart({"temperature": 0.5}) as apart:
        collect(apart.reply([3, 5, 9, 5, 3, 7], 7))
    session.kept.replied()
    session.rest()
    assert session.learnt().replies == 0


@pytest.mark.parametrize(
    ("changes", "trained", "why"),
    [
        ({"drafter": "suffix"}, True, f"drafter 'suffix' is not trained; drafter 'hydra' uses {NAME}, which learns"),
        ({"drafter": "suffix"}, False, "no drafter was trained for this target; `specchat train smol` makes one"),
        ({"controller": "off"}, True, f"controller 'off' drafts nothing; with another one {NAME} can learn"),
    ],
)
def test_where_nothing_can_learn_one_line_says_what_to_do(changes, trained, why):
    session = Session(**changes)
    if not trained:
        session.trained = NO_TRAINED
    report = session.learnt()
    assert (report.drafter, report.why) == ("", why)


def test_learning_is_a_setting_that_acts_live():
    assert Settings().learn is False
    assert Settings().but({"learn": "on"}).learn is True
