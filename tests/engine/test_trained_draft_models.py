"""A draft model that was trained for a target is one more draft model of its pairs, and of no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny_draft_models import draft_folder
from tiny_models import HEAD_DIM, HIDDEN, INNER, KV_HEADS, add_tiny_pair, hub_sizes, tiny_folder

from specchat.bench import runner
from specchat.bench.runner import BenchPlan
from specchat.bench.workloads import own_workload
from specchat.config import config_dir, load_catalog, own_drafters_dir
from specchat.config.trained_drafters import TrainedDrafters
from specchat.decoding.combinations import drafters_to_fetch, refuse_unknown_drafts
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Command, Generate, Load, Message
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.worker import Worker
from specchat.errors import CombinationError
from specchat.models.hub.checksum import weights_sha256
from specchat.settings import Settings

ASK = [Message("user", "say hello")]


class Engine:
    """A worker on this thread, and what it says to a command."""

    def __init__(self) -> None:
        self.heard: list[ev.Event] = []
        self.worker = Worker(CommandQueue(), self.heard.append)

    def answer(self, command: Command) -> list[Any]:
        self.heard.clear()
        self.worker.answer(command)
        return [event for event in self.heard if not isinstance(event, ev.Loading)]

    def proposers(self) -> set[str]:
        rounds = [event for event in self.answer(Generate(1, ASK, 7)) if isinstance(event, ev.RoundDone)]
        return {draw.proposer for one in rounds for draw in one.tree.draws}


def text_of(said: list[Any]) -> str:
    return "".join(piece.text for event in said if isinstance(event, ev.RoundDone) for piece in event.pieces)


@pytest.fixture
def tiny(tmp_path) -> str:
    """The checksum of the target of the pair `tiny`, which has no draft model."""
    add_tiny_pair(tmp_path)
    return weights_sha256(load_catalog().model("tiny-model"))


def made(name: str, sha256: str, seed: int = 3):
    return draft_folder(own_drafters_dir() / name, seed, sha256, hidden=HIDDEN)


def test_a_pair_without_a_draft_model_drafts_with_the_trained_one(tiny):
    made("mine", tiny)
    engine = Engine()
    (ready,) = engine.answer(
        Load({"kernels": "torch", "pair": "tiny", "drafter": "draft_model", "max_tokens": 12, "temperature": 0.0})
    )
    assert (ready.draft, ready.trained) == ("mine", ["draft_model"])
    assert engine.proposers() == {"draft_model"}
    spoken = text_of(engine.answer(Generate(2, ASK, 7)))
    assert spoken == text_of(engine.answer(Generate(3, ASK, 7, apart={"controller": "off"}))) != ""


def test_one_that_was_trained_while_a_pair_is_in_use_is_found_when_it_is_asked_for(tiny):
    engine = Engine()
    (ready,) = engine.answer(Load({"kernels": "torch", "pair": "tiny", "max_tokens": 12}))
    (failed,) = engine.answer(Change({"drafter": "draft_model"}))
    assert "needs a draft model and pair 'tiny' has none" in failed.message
    made("mine", tiny)
    (changed,) = engine.answer(Change({"drafter": "draft_model"}))
    assert (ready.draft, changed.draft) == (None, "mine")
    assert engine.proposers() == {"draft_model"}


def test_an_option_names_which_of_several_drafts(tiny):
    made("older", tiny)
    made("newer", tiny, seed=4)
    engine = Engine()
    options = {"several.of": "draft_model(model=older)+draft_model(model=newer)"}
    (ready,) = engine.answer(
        Load({"kernels": "torch", "pair": "tiny", "drafter": "several", "max_tokens": 12, "method_options": options})
    )
    assert set(ready.draft.split(" + ")) == {"older", "newer"}
    (changed,) = engine.answer(Change({"drafter": "draft_model", "method_options": {"draft_model.model": "older"}}))
    assert changed.draft == "older"
    (failed,) = engine.answer(Change({"method_options": {"draft_model.model": "oldr"}}))
    assert failed.message.startswith("draft_model.model = 'oldr' is not a draft model of pair 'tiny'; did you mean")


def test_a_pairs_own_draft_model_comes_first(tiny):
    with (config_dir() / "models.toml").open("a") as file:
        file.write('[pairs.both]\ntarget = "tiny-model"\ndraft = "tiny-model"\n')
    made("mine", tiny)
    engine = Engine()
    (ready,) = engine.answer(Load({"kernels": "torch", "pair": "both", "drafter": "draft_model"}))
    assert ready.draft == "tiny-model"
    (changed,) = engine.answer(Change({"method_options": {"draft_model.model": "mine"}}))
    assert changed.draft == "mine"


@pytest.mark.parametrize("named", [{}, {"method_options": {"draft_model.model": "strange"}}], ids=["any", "named"])
def test_one_of_another_target_is_refused(tiny, named):
    made("strange", "cd" * 32)
    engine = Engine()
    (failed,) = engine.answer(Load({"kernels": "torch", "pair": "tiny", "drafter": "draft_model", **named}))
    said = "cannot be used: it was trained for tiny, not for tiny-model" if named else "pair 'tiny' has none"
    assert said in failed.message
    assert "nearest that works: drafter" in failed.message


def lending_target(folder, words=()) -> str:
    """Add a target of half the width with the same tokens, but for these words; the checksum of its weights."""
    half = {HIDDEN: HIDDEN // 2, INNER: INNER // 2, KV_HEADS * HEAD_DIM: KV_HEADS * HEAD_DIM // 2}
    numbers = {"hidden_size": HIDDEN // 2, "intermediate_size": INNER // 2, "head_dim": HEAD_DIM // 2}
    sizes = {name: tuple(half.get(size, size) for size in shape) for name, shape in hub_sizes().items()}
    weights = tiny_folder(folder / "lender", {**numbers, "max_position_embeddings": 2048}, sizes)
    for word in words:
        file = weights / "tokenizer.json"
        file.write_text(file.read_text(encoding="utf-8").replace(f'"{word}"', f'"{word}{word}"'), encoding="utf-8")
    with (config_dir() / "models.toml").open("a", encoding="utf-8") as file:
        file.write(f'[models.lender]\nsources = [{{ path = "{weights}" }}]\nlicence = "Apache-2.0"\n')
    return weights_sha256(load_catalog().model("lender"))


def lent(name: str, sha256: str):
    return draft_folder(own_drafters_dir() / name, 3, sha256, target="lender", layers=3, depths=(1, 3))


def test_one_that_was_trained_for_another_target_with_the_same_tokens_drafts_with_that_ones_embedding(tiny, tmp_path):
    lent("lent", lending_target(tmp_path))
    engine = Engine()
    (ready,) = engine.answer(
        Load({"kernels": "torch", "pair": "tiny", "drafter": "draft_model", "max_tokens": 12, "temperature": 0.0})
    )
    assert ready.draft == "lent"
    assert engine.proposers() == {"draft_model"}
    spoken = text_of(engine.answer(Generate(2, ASK, 7)))
    assert spoken == text_of(engine.answer(Generate(3, ASK, 7, apart={"controller": "off"}))) != ""
    made("own", tiny)
    (ready,) = Engine().answer(Load({"kernels": "torch", "pair": "tiny", "drafter": "draft_model"}))
    assert ready.draft == "own", "that of the target itself comes first"


@pytest.mark.parametrize("why", ["other tokens", "other weights", "not here"])
def test_one_is_lent_only_by_a_target_that_is_here_unchanged_and_has_the_same_tokens(tiny, tmp_path, why):
    sha256 = lending_target(tmp_path, ["hell"] if why == "other tokens" else ())
    lent("lent", "cd" * 32 if why == "other weights" else sha256)
    if why == "not here":
        (tmp_path / "lender" / "model.safetensors").unlink()
    options = {"method_options": {"draft_model.model": "lent"}}
    (failed,) = Engine().answer(Load({"kernels": "torch", "pair": "tiny", "drafter": "draft_model", **options}))
    assert "cannot be used: it was trained for lender, not for tiny-model" in failed.message


def test_a_damaged_one_is_refused_with_its_file(tiny):
    folder = made("mine", tiny)
    data = bytearray(folder.weights.read_bytes())
    data[-1] ^= 1
    folder.weights.write_bytes(bytes(data))
    engine = Engine()
    named = {"draft_model.model": "mine"}
    (failed,) = engine.answer(
        Load({"kernels": "torch", "pair": "tiny", "drafter": "draft_model", "method_options": named})
    )
    assert "weights.safetensors has changed" in failed.message


def test_one_that_can_be_fetched_is_fetched_by_its_name_and_else_said_to_be_missing():
    named = Settings().but({"drafter": "draft_model", "method_options": {"draft_model.model": "far"}})
    trained = TrainedDrafters(fetchable={"draft_model": ("far",), "hydra": ("other",)})
    assert drafters_to_fetch(named, trained) == ["far"]
    assert drafters_to_fetch(named.but({"controller": "off"}), trained) == []
    with pytest.raises(CombinationError, match=r"= 'far' is not here; `specchat models pull far` fetches it"):
        refuse_unknown_drafts(named, ("own",), trained)
    refuse_unknown_drafts(named.but({"method_options": {"draft_model.model": "own"}}), ("own",), trained)


def test_a_bench_takes_it_and_refuses_a_name_that_none_has(tiny):
    made("mine", tiny)
    plan = BenchPlan(Settings().but({"pair": "tiny"}), own_workload(), "draft_model:draft_model.model=mine")
    runner._refuse_early(plan)
    with pytest.raises(CombinationError, match="'other' is not a draft model of pair 'tiny'"):
        runner._refuse_early(replace(plan, compare="draft_model:draft_model.model=other"))
