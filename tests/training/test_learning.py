"""Learning: losses have the right gradients, a tiny network gets better, nothing is lost when it is cut off."""

import copy
import dataclasses
import itertools
import json
import re
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from training_kit import V, own_texts, recipe, some_texts, subject, target, unroll

from specchat.config import cache_dir, data_dir
from specchat.config.trained_drafters import read_drafter
from specchat.errors import CheckpointError, NotEnoughMemory, TrainingError
from specchat.models.draft_heads import FAMILIES, methods
from specchat.models.draft_heads.head import FURTHER_RATE, STEPS, DraftHead, SharedWeights
from specchat.models.draft_heads.loading import load_network, new_network
from specchat.training import disk as needs
from specchat.training import fitting, job, losses
from specchat.training import texts as text_writing
from specchat.training.checkpoints import NetworkOptimizer
from specchat.training.corpus import Corpus, shared_with
from specchat.training.disk import only_user
from specchat.training.distillation import LOSSES
from specchat.training.fitting import Fitting, Schedule
from specchat.training.job import Job
from specchat.training.limits import texts_per_batch, training_cost
from specchat.training.losses import (
    Acceptance,
    DrawnTrees,
    NextTokens,
    acceptance,
    chain_loss,
    columns_of,
    divergence,
    followed,
    labels_of,
    tree_loss,
)
from specchat.training.online_learning import MOST_CHANGED
from specchat.training.states import StateReading
from specchat.training.training_request import Places, TrainingRequest

OF_A_CHAIN = methods("head", "draft model")


@pytest.fixture(scope="module")
def model():
    return target(forgetful=True)


@pytest.fixture(scope="module")
def shard(model, tmp_path_factory):
    return StateReading(model, "ab" * 32, tmp_path_factory.mktemp("states")).shard(own_texts(model))


NARROWED = {"falcon": {"width": 64}}
"""Sizes that do not follow the target's: as wide as it is."""


def network_for(method, model, corpus):
    layers = StateReading(model, "", None).layers
    sizes = FAMILIES[method].load().sizes_for(model.network.shape, layers)
    sizes = dataclasses.replace(sizes, **NARROWED.get(method, {}))
    shared = shared_with(model, corpus, V)
    return new_network(method, sizes, shared, torch.Generator().manual_seed(0))


def labels(rows, vocab_size, kept=5):
    noise = torch.Generator().manual_seed(2)
    scores = torch.randn(rows, vocab_size, generator=noise, dtype=torch.float64)
    top = scores.softmax(1).topk(kept, dim=1)
    return top.indices, top.values.log(), 1 - top.values.sum(1)


def test_the_loss_has_the_gradient_of_finite_differences():
    columns = torch.arange(11)
    columns[4] = -1
    found = labels_of(*labels(6, 11), columns)
    logits = torch.randn(6, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: divergence(x, found), (logits,))


def test_the_loss_is_zero_where_the_network_says_what_the_target_says():
    likeliest, log_p, rest = labels(4, 11, kept=11)
    found = labels_of(likeliest, log_p, rest.clamp_min(0), torch.arange(11))
    law = torch.zeros(4, 11, dtype=torch.float64).scatter(1, likeliest, log_p)
    assert float(divergence(law, found).abs().max()) < 1e-4
    assert float(divergence(law.flip(1), found).min()) > 0.1


def test_sharpened_labels_are_nearly_those_of_the_whole_law():
    """Of probabilities that fall with a power of the rank, as words' do; of 5 only their sum is otherwise known."""
    law = torch.arange(1, 2001, dtype=torch.float64) ** -1.5
    law, wanted = law / law.sum(), law**1.25 / (law**1.25).sum()
    likeliest = torch.arange(16)[None]
    found, plain = (
        labels_of(likeliest, law[None, :16].log(), law[16:].sum()[None], torch.arange(2000), sharpness)
        for sharpness in (1.25, 1.0)
    )
    torch.testing.assert_close(found.p[0], wanted[:16], rtol=0.03, atol=0)
    torch.testing.assert_close(found.rest[0], wanted[16:].sum(), rtol=0.1, atol=0)
    torch.testing.assert_close(plain.p[0], law[:16])
    torch.testing.assert_close(plain.rest[0], law[16:].sum())
    assert plain.rest[0] > 1.5 * wanted[16:].sum(), "the tail is not simply kept"


def test_what_cannot_be_guessed_shares_out_its_probability():
    columns = torch.tensor([0, -1, 1])
    found = labels_of(torch.tensor([[1, 0]]), torch.tensor([[0.6, 0.3]]).log(), torch.tensor([0.1]), columns)
    torch.testing.assert_close(found.p, torch.tensor([[0.0, 0.75]]))
    torch.testing.assert_close(found.rest, torch.tensor([0.25]))


def test_chains_go_on_where_they_were_right_and_where_near_misses_are_drawn():
    logits = torch.tensor([[9.0, 8, 7, 6, 5, 0]]).expand(4, 6)
    wanted = torch.tensor([0, 1, 1, 5])
    chance = torch.tensor([0.99, 0.2, 0.5, 0.0])
    assert followed(logits, wanted, chance).tolist() == [True, True, False, False]


@pytest.mark.parametrize("method", OF_A_CHAIN)
def test_the_gradient_of_a_whole_unrolled_chain_is_that_of_finite_differences(method, model, shard, monkeypatch):
    monkeypatch.setattr(losses, "_NEAR_SHARE", 1.0)
    monkeypatch.setattr(losses, "_NEAR", V)  # every chain goes on
    corpus = Corpus([shard], STEPS, recipe(method).reads_back)
    network = network_for(method, model, corpus).double()
    shared = network.shared
    network.shared = SharedWeights(lambda t: shared.embed(t).double(), shared.tokens, shared.head.double())
    batch, _ = next(corpus.epoch(0, 0, 2))
    batch, columns = dataclasses.replace(batch, features=batch.features.double()), columns_of(shared.tokens, V)

    def loss():
        return chain_loss(network, batch, columns, STEPS, torch.Generator().manual_seed(0))[0]

    loss().backward()
    for name, parameter in network.named_parameters():
        place = int(parameter.abs().argmax())
        found, step = float(parameter.grad.flatten()[place]), 1e-5
        with torch.no_grad():
            flat = parameter.view(-1)
            flat[place] += step
            above = float(loss())
            flat[place] -= 2 * step
            below = float(loss())
            flat[place] += step
        assert found == pytest.approx((above - below) / (2 * step), rel=2e-3, abs=1e-6), name


def fitted(method, model, shard, folder, tokens, texts=4, schedule=None, **changes):
    corpus = Corpus([shard], recipe(method).steps, recipe(method).reads_back)
    schedule = schedule or Schedule(tokens, 0.0, 4e-3, 2000)
    about = {"method": method, **changes}
    return Fitting(
        network_for(method, model, corpus), corpus, schedule, folder, V, recipe(method).steps, texts, 0, about
    )


@pytest.fixture(scope="module")
def begun(model, shard, tmp_path_factory):
    """The folder of a training that has gone through 300 tokens."""
    folder = tmp_path_factory.mktemp("begun")
    fitted("hydra", model, shard, folder, 300).run(lambda standing: None)
    return folder


@pytest.mark.parametrize("method", OF_A_CHAIN)
def test_a_trained_network_beats_its_untrained_self(method, model, shard, tmp_path):
    fit = fitted(method, model, shard, tmp_path, 2200, schedule=Schedule(2200, 0.0, 2e-2, 1100))  # in large steps
    standing = fit.run(lambda standing: None)
    before, after = standing.curve[0]["tau"], standing.best
    assert after > before + 0.2, standing.curve
    kept = load_network(method, fit.network.sizes.options(), fit.best_weights, lambda tokens: fit.network.shared)
    corpus = Corpus([shard], recipe(method).steps, recipe(method).reads_back)
    columns = columns_of(fit.network.shared.tokens, V)
    [batch] = corpus.unseen(16)
    with torch.autocast("cpu", torch.bfloat16):  # as while it learns: few chains are measured, and one counts much
        assert acceptance(kept, batch, columns, 4).tau == pytest.approx(after, abs=0.1)
    torch.manual_seed(0)
    shuffled = {name: t.flatten()[torch.randperm(t.numel())].view(t.shape) for name, t in kept.state_dict().items()}
    kept.load_state_dict(shuffled)
    assert acceptance(kept, batch, columns, 4).tau < after - 0.2, "a shuffled network guesses no better than chance"


def length_of_trees(network, batches, steps, columns, draws=4):
    """Mean expected accepted length of trees drawn from every place where so many tokens follow."""
    total, places = 0.0, 0
    for batch in batches:
        states = network.states(network.fused(batch.features), batch.tokens, steps)
        begun = batch.drafted(steps, states[0].shape[1])
        for seed in range(draws):
            trees, noise = DrawnTrees(begun), torch.Generator().manual_seed(seed)
            for step, state in enumerate(states, 1):
                said = network.logits(state[begun]).log_softmax(1)
                trees.grow(step, said, NextTokens.of(batch, columns, step, begun), noise)
            total, places = total + float(trees.length[begun].sum()), places + int(begun.sum())
    return total / places


@torch.no_grad()
def test_drawn_trees_of_texts_that_are_learnt_grow_longer_by_the_loss_of_trees(model, shard):
    corpus = Corpus([shard], STEPS, recipe("hydra").reads_back)
    network = network_for("hydra", model, corpus)
    columns = columns_of(network.shared.tokens, V)

    def learn(network, loss, epochs, rate):
        optimizer = NetworkOptimizer(network, rate)
        batches = itertools.chain.from_iterable(corpus.epoch(number, 0, 4) for number in range(epochs))
        for step, (batch, _) in enumerate(batches):
            with torch.enable_grad():
                found, _ = loss(network, batch, columns, STEPS, torch.Generator().manual_seed(step))
                found.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step(rate)
        return network

    learnt = [batch for batch, _ in corpus.epoch(0, 0, 16)]
    network = learn(network, chain_loss, 4, 5e-3)
    before = length_of_trees(network, learnt, STEPS, columns)

    def stage(sign):
        def loss(*about):
            found, chains = tree_loss(*about, reference=network)
            return sign * found, chains

        return learn(copy.deepcopy(network), loss, 4, 1e-3)

    trained, taken_back = stage(1), stage(-1)
    after, worse = (length_of_trees(one, learnt, STEPS, columns) for one in (trained, taken_back))
    held_out = [length_of_trees(one, corpus.unseen(16), STEPS, columns) for one in (network, trained)]
    print(before, after, worse, held_out)
    assert after > 1.05 * before
    assert worse < before, "the same loss turned around"


def test_learning_that_was_cut_off_goes_on_to_the_same_weights(model, shard, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "_CHECKPOINT_S", 0.0)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = fitted("hydra", model, shard, tmp_path / "whole", 2000)
    whole.run(lambda standing: None)

    class Killed(BaseException):
        pass

    def kill(standing):
        if standing.batches == 9:
            monkeypatch.setattr(Fitting, "_save", lambda self: None)  # a sudden end writes nothing more
            raise Killed

    save = Fitting._save
    with pytest.raises(Killed):
        fitted("hydra", model, shard, tmp_path / "parts", 2000).run(kill)
    monkeypatch.setattr(Fitting, "_save", save)
    again = fitted("hydra", model, shard, tmp_path / "parts", 2000)
    assert again.standing.batches == 9
    again.run(lambda standing: None)
    assert again.standing.curve == whole.standing.curve
    for one, other in zip(whole.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_named(model, shard, tmp_path):
    fitted("hydra", model, shard, tmp_path, 300).run(lambda standing: None)
    with pytest.raises(TrainingError, match=r"checkpoint\.safetensors was made with data = None, not 2"):
        fitted("hydra", model, shard, tmp_path, 300, data=2)
    file = tmp_path / "checkpoint.safetensors"
    with safe_open(file, framework="pt") as opened:
        said = json.loads(opened.metadata()["specchat"])
        tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    whole = file.read_bytes()
    save_file(tensors, file, {"specchat": json.dumps({**said, "about": {**said["about"], "method": "x\n" * 9999}})})
    with pytest.raises(TrainingError, match="was made with method = ") as refused:
        fitted("hydra", model, shard, tmp_path, 300)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
    for stranger in ("optimizer.nothing.exp_avg", "nothing"):
        save_file({**tensors, stranger: torch.zeros(1)}, file, {"specchat": json.dumps(said)})
        with pytest.raises(TrainingError, match=f"is damaged: '{stranger}' belongs to nothing that learns"):
            fitted("hydra", model, shard, tmp_path, 300)
    for damaged in (whole[:-9], b"", b"\xff" * 20):
        file.write_bytes(damaged)
        with pytest.raises(TrainingError, match=r"checkpoint\.safetensors is damaged.*--name"):
            fitted("hydra", model, shard, tmp_path, 300)


def test_of_other_sizes_a_checkpoint_names_the_one_that_differs(model, shard, tmp_path):
    sizes = {"hidden": 64, "sampled": 128}
    fitted("hydra", model, shard, tmp_path, 300, options=sizes).run(lambda standing: None)
    with pytest.raises(TrainingError, match=r"was made with options\.sampled = 128, not 0; remove it"):
        fitted("hydra", model, shard, tmp_path, 300, options={**sizes, "sampled": 0})


def test_learning_ends_where_it_no_longer_helps(model, shard, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "_PATIENCE", 2)
    fit = fitted("hydra", model, shard, tmp_path, 10**9)
    fit._schedule = Schedule(10**9, 0.0, 0.0, 500)  # a rate of 0 learns nothing
    assert fit.run(lambda standing: None).tokens < 3000
    (tmp_path / "whole").mkdir()
    fit = fitted("hydra", model, shard, tmp_path / "whole", 3000, schedule=Schedule(3000, 0.0, 0.0, 500, further=True))
    assert fit.run(lambda standing: None).tokens >= 3000, "a drafter that learns further goes through its schedule"


def test_a_network_that_guesses_blocks_is_shown_less_and_less_of_what_it_misses(model, shard, tmp_path):
    shown = []

    def noted(*about, glancing):
        shown.append(glancing)
        return chain_loss(*about, glancing)

    schedule = Schedule(900, 0.0, 4e-3, 4000, glancing=recipe("falcon").glancing)
    fit = fitted("falcon", model, shard, tmp_path, 900, schedule=schedule)
    fit._loss = noted
    fit.run(lambda standing: None)
    assert shown[0] == 0.4
    assert all(later < earlier for earlier, later in itertools.pairwise(shown))
    assert 0 < shown[-1] < 0.1
    assert {recipe(method).glancing for method in FAMILIES if method != "falcon"} == {0.0}


def test_means_of_start_and_end_are_measured_where_a_drafter_learns_further(model, shard, tmp_path, monkeypatch):
    schedule = Schedule(6000, 0.0, 4e-3, 2000, further=True)
    fit = fitted("hydra", model, shard, tmp_path, 6000, schedule=schedule)
    start = {name: tensor.clone() for name, tensor in fit.network.state_dict().items()}
    ended = start["back.weight"]

    def tau(network, *_):
        learnt = not torch.equal(ended, start["back.weight"])
        is_middle = learnt and torch.allclose(network.back.weight, (start["back.weight"] + ended) / 2, atol=1e-6)
        return Acceptance((0.9 if is_middle else 0.1,), 100)

    monkeypatch.setattr(fit, "_accepted", tau)
    learn = fit._learn

    def remember(batch):
        nonlocal ended
        learn(batch)
        ended = fit.network.back.weight.clone()

    monkeypatch.setattr(fit, "_learn", remember)
    standing = fit.run(lambda standing: None)
    assert [point.get("share_of_start") for point in standing.curve[-4:]] == [None, 0.25, 0.5, 0.75]
    assert max(standing.curve, key=lambda point: point["tau"])["share_of_start"] == 0.5
    kept = load_network("hydra", fit.network.sizes.options(), fit.best_weights, lambda tokens: fit.network.shared)
    middle = (start["back.weight"] + ended) / 2
    assert (kept.back.weight - middle).abs().max() < 0.02 * middle.abs().max() + 1e-3
    assert (middle - ended).abs().max() > 0.02 * middle.abs().max() + 1e-3, "the mean differs from the end"
    assert torch.equal(fit.network.back.weight, ended), "its learning could go on"
    again = fitted("hydra", model, shard, tmp_path, 6000, schedule=schedule)
    assert len(again.run(lambda standing: None).curve) == len(standing.curve), "they are measured once"


def test_an_interrupt_while_means_are_measured_leaves_the_weights_where_learning_ended(
    model, shard, tmp_path, monkeypatch
):
    def new():
        return fitted("hydra", model, shard, tmp_path, 2000, schedule=Schedule(2000, 0.0, 4e-3, 2000, further=True))

    fit, measure, ended = new(), Fitting._measure, []

    def interrupted(self, share_of_start=None):
        if share_of_start == 0.5:
            raise KeyboardInterrupt
        if share_of_start is None:
            ended.append(self.network.back.weight.clone())
        measure(self, share_of_start)

    with monkeypatch.context() as patched:
        patched.setattr(Fitting, "_measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit.run(lambda standing: None)
    again = new()
    assert torch.equal(again.network.back.weight, ended[-1])
    curve = again.run(lambda standing: None).curve
    assert [point["share_of_start"] for point in curve if "share_of_start" in point] == [0.25, 0.5, 0.75]


def test_wider_targets_take_more_texts_in_a_step():
    assert [texts_per_batch(hidden) for hidden in (64, 576, 1536, 4096, 16384)] == [4, 4, 12, 32, 32]
    narrow, wide = (training_cost("hydra", 100_000, 1_000_000_000, hidden).seconds for hidden in (768, 1536))
    assert narrow < wide < 8 * narrow, "the matrices' eightfold time is shared by twice the texts"
    assert recipe("hydra").rate(16) == 2 * recipe("hydra").rate(4)
    assert recipe("hydra").rate(4, further=True) == FURTHER_RATE * recipe("hydra").rate(4) < 2e-3


def test_a_step_takes_as_many_texts_as_are_asked_for(model, shard, tmp_path):
    seen = []
    for texts in (4, 8):
        (tmp_path / str(texts)).mkdir()
        fit = fitted("hydra", model, shard, tmp_path / str(texts), 2000, texts)
        fit.run(lambda standing: None)
        seen.append(fit.standing.batches)
    assert seen[0] / 2 <= seen[1] <= seen[0] / 2 + 1


def test_every_network_has_a_recipe():
    for method, family in FAMILIES.items():
        made = family.load()
        assert made.recipe.distils == (family.kind == "draft model")
        assert made.recipe.through_target == (family.kind == "masks")
        assert made.recipe.denoises == (family.kind == "denoiser")
        assert issubclass(made, DraftHead) == (family.kind == "head")
        assert family.method == method
        assert family.learnt_per_s > 0


def request(tmp_path, **changes):
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(f"w{a} w{b} w5 w{a}" for a in range(3, 12) for b in range(20, 28)))
    known = {"pair": "tiny", "drafter": "hydra", "prompts": str(file), "tokens": 600, "hours": 0.0, "name": "mine"}
    return TrainingRequest(**{**known, **changes})


def test_a_boosted_job_learns_and_is_measured_where_the_earlier_draft_model_is_worse(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 1)
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 12)
    seen = []

    class Watched(Fitting):
        def __init__(self, *about) -> None:
            seen.append((about[1], about[2].tokens, about[10]))
            super().__init__(*about)

    monkeypatch.setattr(job, "Fitting", Watched)
    monkeypatch.setattr(job, "FAMILIES", {"draft_model": dataclasses.replace(FAMILIES["draft_model"], epochs=1)})
    earlier = Job(request(tmp_path, drafter="draft_model"), subject(), lambda stage: None).run()
    boosted = request(tmp_path, drafter="draft_model", name="second", reference="mine", select="prompts")
    Job(boosted, subject(), lambda stage: None, reference=earlier).run()
    (whole, tokens, _), (rest, as_many, loss) = seen
    assert {*rest.learnt} < {*whole.learnt}
    assert {*rest.held_out} <= {*whole.held_out}
    assert as_many == tokens, "left out texts are made up for"
    assert loss.reference is None, "of the texts that stay every place is learnt"


def test_a_job_goes_from_prompts_to_a_drafters_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 4)
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 12)
    (killed := data_dir() / "drafters" / ".unfinished-x" / "mine").mkdir(parents=True)
    said, threads, asked = [], {}, subject()
    asked.model.network.threads = 2

    def tell(stage):
        said.append(stage)
        threads[stage.name] = torch.get_num_threads()

    torch.set_num_threads(1)
    trained = Job(request(tmp_path), asked, tell).run()
    assert (threads["states"], threads["learning"], torch.get_num_threads()) == (1, 2, 1)
    assert not killed.parent.exists()
    assert trained == read_drafter(data_dir() / "drafters" / "mine", ("hydra",))
    assert list(dict.fromkeys(stage.name for stage in said)) == ["replies", "states", "learning"]
    assert trained.target_sha256 == "ab" * 32
    assert trained.data["reply_tokens"] >= 480
    assert trained.figures["curve_tokens"][-1] == trained.figures["tokens_seen"]
    assert trained.figures["chain_tau_held_out"] == max(trained.figures["curve_tau"])
    with pytest.raises(TrainingError, match="'mine' is there already"):
        Job(request(tmp_path), subject(), said.append)
    made = [file for folder in (data_dir(), cache_dir() / "training") for file in folder.rglob("*")]
    assert {"texts.jsonl", "00000.safetensors", "checkpoint.safetensors", "drafter.toml"} <= {
        file.name for file in made
    }
    for file in made:
        assert not file.stat().st_mode & 0o077, f"{file} is readable by others"
    states = asked_states(tmp_path)
    (states / "nowhere").symlink_to("gone")
    Job(request(tmp_path, resume=True), subject(), said.append)
    shutil.rmtree(states)
    states.touch()
    with pytest.raises(TrainingError, match="states cannot be read: Not a directory"):
        Job(request(tmp_path, resume=True), subject(), said.append)


class Products(TorchDispatchMode):
    """The formats of matrix products that are computed within it."""

    def __init__(self):
        super().__init__()
        self.formats = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
            self.formats.add(made.dtype)
        return made


@pytest.mark.parametrize("method", ["hydra", "prompt_tokens"])  # one learns by itself, one through the target
def test_learning_multiplies_in_bfloat16_only_where_the_hardware_does(method, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 1)
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 12)
    monkeypatch.setitem(FAMILIES, method, dataclasses.replace(FAMILIES[method], epochs=0.1))
    products, run = Products(), Fitting.run

    def watched(self, tell):
        with products:
            return run(self, tell)

    monkeypatch.setattr(Fitting, "run", watched)
    for name, native in (("narrow", True), ("wide", False)):
        monkeypatch.setattr("specchat.models.machine.native_bfloat16", lambda device, native=native: native)
        products.formats.clear()
        Job(request(tmp_path, drafter=method, name=name), subject(), lambda stage: None).run()
        assert (torch.bfloat16 in products.formats) == native
        assert torch.float32 in products.formats or native


def test_a_job_tells_guesses_that_learning_changed_in_a_text_it_never_learnt_from(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 4)
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 24)
    fittings, run = [], Fitting.run
    monkeypatch.setattr(Fitting, "run", lambda self, tell: fittings.append(self) or run(self, tell))
    made = Job(request(tmp_path, tokens=1500), subject(target(forgetful=True)), lambda stage: None)
    trained = made.run()
    shared, corpus = fittings[0].network.shared, fittings[0]._corpus
    best = load_network("hydra", trained.options, trained.weights, lambda tokens: shared)

    def guesses(batch):
        """By the best weights: the token guessed for each place, and the text's own."""
        guessed = shared.tokens[unroll(best, batch.features, batch.tokens, 1)[0].argmax(-1)][0].tolist()
        return dict(enumerate(zip(guessed, batch.tokens[0, 2:].tolist(), strict=False), 1))

    texts = [guesses(batch) for batch in corpus.unseen(1)]
    assert len(made.changed) == MOST_CHANGED
    assert any(one.now == one.wrote for one in made.changed)
    assert all(one.before != one.now for one in made.changed)
    assert any(all(text.get(one.place) == (one.now, one.wrote) for one in made.changed) for text in texts)


def asked_states(tmp_path):
    return Places.of(request(tmp_path, resume=True), "tiny", "ab" * 32).states


def test_a_training_that_went_wrong_says_so_with_every_loss(tmp_path):
    """A draft whose logits are no numbers: nothing can be drawn from it."""
    labels = labels_of(*labels_rows(), torch.arange(11))
    logits = torch.full((6, 11), torch.nan)
    for name, loss in LOSSES.items():
        assert not loss(logits, labels, torch.Generator()).isfinite().any(), name


def labels_rows():
    likeliest, log_p, rest = labels(6, 11)
    return likeliest, log_p.float(), rest.float()


def test_what_a_job_takes_is_known_and_refused_before_it_begins(tmp_path, monkeypatch):
    asked = Job(request(tmp_path, tokens=100_000), subject(), lambda stage: None)
    network = network_for("hydra", asked._subject.model, Corpus([asked_shard(asked, tmp_path)], STEPS, False))
    assert asked.needs.weights == sum(parameter.numel() for parameter in network.parameters())
    assert asked.needs.disk_bytes > 100_000 * 4 * 64 * 2
    monkeypatch.setattr(needs, "available_bytes", lambda device: 1 << 20)
    with pytest.raises(NotEnoughMemory, match=r"training needs about 1\.\d GB of memory and 0\.0 GB are free"):
        asked.run()


def asked_shard(asked, tmp_path):
    return StateReading(asked._subject.model, "", tmp_path).shard(some_texts(3))


def test_an_interrupt_keeps_the_best_and_resume_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 4)
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 12)

    def interrupt(stage):
        if stage.name == "learning" and stage.done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Job(request(tmp_path), subject(), interrupt).run()
    early = read_drafter(data_dir() / "drafters" / "mine", ("hydra",))
    trained = Job(request(tmp_path, resume=True), subject(), lambda stage: None).run()
    assert trained.figures["tokens_seen"] > early.figures["tokens_seen"] > 0
    assert trained.figures["curve_tau"][: len(early.figures["curve_tau"])] == early.figures["curve_tau"]


def test_damaged_best_weights_take_the_place_of_no_drafter(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 2)
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 12)
    first = Job(request(tmp_path), subject(), lambda stage: None)
    made = first.run()
    before = {file.name: file.read_bytes() for file in made.folder.iterdir()}
    best = first.places.run / "best.safetensors"
    for damage in (lambda: best.write_bytes(b""), best.unlink):
        damage()
        with pytest.raises(
            TrainingError, match=r"best\.safetensors .*; remove /.* to begin anew, or choose another --name"
        ):
            Job(request(tmp_path, resume=True), subject(), lambda stage: None).run()
        assert {file.name: file.read_bytes() for file in made.folder.iterdir()} == before


def test_weights_and_what_is_said_of_them_are_replaced_together_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 2)
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 12)
    made = Job(request(tmp_path), subject(), lambda stage: None).run()
    (made.folder / "weights.safetensors").write_bytes(b"of an earlier training")
    before = {file.name: file.read_bytes() for file in made.folder.iterdir()}

    def full(folder, **about):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(job, "write_drafter", full)
        with pytest.raises(TrainingError, match="mine cannot be written: No space left on device"):
            Job(request(tmp_path, resume=True), subject(), lambda stage: None).run()
    assert {file.name: file.read_bytes() for file in made.folder.iterdir()} == before
    assert [place.name for place in made.folder.parent.iterdir()] == ["mine"]
    again = Job(request(tmp_path, resume=True), subject(), lambda stage: None).run()
    assert dataclasses.replace(again, made=made.made) == made
    assert (made.folder / "weights.safetensors").stat().st_size == made.size


def test_a_lock_that_cannot_be_written_is_told_in_one_line(tmp_path):
    asked = Job(request(tmp_path), subject(), lambda stage: None)
    (asked.places.data / "lock").mkdir()
    with pytest.raises(TrainingError, match="lock cannot be written: Is a directory"):
        asked.run()


@pytest.mark.parametrize(
    "changes",
    [
        {"curve": "x"},
        {"curve": [{"tokens": 1, "tau": 1.5}]},
        {"curve": [{"tokens": 1, "tau": "x", "by_depth": [0.5]}]},
        {"batches": "x"},
        {"tokens": None},
        {"since_best": -1},
        {"best": True},
        {"more": 1},
        {"best": float("inf")},
        {"seconds": float("nan")},
        {"batches": 10**30},
    ],
    ids=str,
)
def test_a_checkpoint_that_says_what_cannot_be_is_refused_by_its_file(model, shard, begun, tmp_path, changes):
    file = shutil.copytree(begun, tmp_path, dirs_exist_ok=True) / "checkpoint.safetensors"
    with safe_open(file, framework="pt") as opened:
        said = json.loads(opened.metadata()["specchat"])
        tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    said["standing"] |= changes
    save_file(tensors, file, {"specchat": json.dumps(said)})
    with pytest.raises(TrainingError, match=rf"checkpoint\.safetensors is damaged: .*{next(iter(changes))}"):
        fitted("hydra", model, shard, tmp_path, 300)


def halved(tensors, name):
    tensors[name] = tensors[name][..., :1].clone()


def in_another_format(tensors, name):
    tensors[name] = tensors[name].to(torch.float64)


def not_finite(tensors, name):
    tensors[name].view(-1)[-1] = torch.nan


def below_zero(tensors, name):
    tensors[name] -= 1e6


def removed(tensors, name):
    del tensors[name]


DAMAGE = [
    *((what, part) for what in (halved, in_another_format, not_finite) for part in ("momentum_buffer", "exp_avg")),
    *((what, part) for what in (in_another_format, not_finite, below_zero) for part in ("exp_avg_sq", "step")),
    *((removed, part) for part in ("exp_avg", "step")),
    *((what, "network") for what in (in_another_format, not_finite)),
]


@pytest.mark.parametrize(("what", "part"), DAMAGE, ids=lambda value: getattr(value, "__name__", value))
def test_a_checkpoint_with_tensors_that_do_not_fit_is_refused_by_its_file_and_stays(
    model, shard, begun, tmp_path, what, part
):
    file = shutil.copytree(begun, tmp_path, dirs_exist_ok=True) / "checkpoint.safetensors"
    with safe_open(file, framework="pt") as opened:
        said = opened.metadata()
        tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    name = next(name for name in tensors if name.startswith(f"{part}.") or name.endswith(f".{part}"))
    what(tensors, name)
    save_file(tensors, file, said)
    before = file.read_bytes()
    owner = re.escape(name.removesuffix(f".{part}"))
    with pytest.raises(CheckpointError, match=rf"checkpoint\.safetensors is damaged: {owner}.*; remove it") as refused:
        fitted("hydra", model, shard, tmp_path, 300)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2
    assert file.read_bytes() == before


def test_two_trainings_do_not_write_to_the_same_data(tmp_path):
    asked = Job(request(tmp_path), subject(), lambda stage: None)
    with only_user(asked.places.data), pytest.raises(TrainingError, match="another training uses"):
        asked.run()


@pytest.mark.parametrize("what", ["best.safetensors", "checkpoint.safetensors"])
def test_a_disk_that_fills_up_while_it_learns_is_told_in_one_line(model, shard, tmp_path, what):
    fit = fitted("hydra", model, shard, tmp_path, 300)
    (tmp_path / what).mkdir()  # nothing can take its place
    with pytest.raises(TrainingError, match=rf"{what} cannot be written"):
        fit.run(lambda standing: None)
    assert not list(tmp_path.glob(".*.new"))
