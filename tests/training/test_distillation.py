"""The losses of a draft model: right gradients, less variance with a baseline, the places that are selected."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from training_kit import V, some_texts, target

from specchat.errors import TrainingError, UsageError
from specchat.models.backends.scripted import ScriptedModel
from specchat.models.draft_heads import FAMILIES
from specchat.models.draft_heads.draft_language_model import DraftModelSizes
from specchat.models.draft_heads.head import STEPS, SharedWeights
from specchat.models.draft_heads.loading import new_network
from specchat.training import distillation, fitting
from specchat.training import limits as training_limits
from specchat.training.corpus import Corpus, shared_with
from specchat.training.distillation import (
    LOSSES,
    SELECTIONS,
    Distillation,
    behind,
    normalised,
    policy_gradient,
    rewards,
    total_variation,
    unreproduced,
    wrong_guesses,
)
from specchat.training.fitting import Fitting, Schedule
from specchat.training.limits import refuse_unknown_loss
from specchat.training.losses import Labels, columns_of, labels_at, labels_of, laws_of, logits_of, overlap
from specchat.training.states import StateReading
from specchat.training.texts import TrainingText

WORDS, PLACES = 9, 5
SURE = [name for name in LOSSES if name != "tvd_plus_plus"]
"""Losses that draw nothing."""

HELD_FIXED = ("lk_mixed",)
"""Losses that count a part of themselves as constant, so that finite differences have another gradient."""


def some_labels(seed: int = 2) -> Labels:
    """The four likeliest of nine words at five places, one of which cannot be guessed."""
    noise = torch.Generator().manual_seed(seed)
    law = (2 * torch.randn(PLACES, WORDS, generator=noise, dtype=torch.float64)).softmax(1)
    top = law.topk(4, dim=1)
    columns = torch.arange(WORDS)
    columns[int(top.indices[0, 1])] = -1
    return labels_of(top.indices, top.values.log(), 1 - top.values.sum(1), columns)


def some_logits(seed: int = 1) -> torch.Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(PLACES, WORDS, generator=noise, dtype=torch.float64, requires_grad=True)


def of_target(labels: Labels) -> torch.Tensor:
    """Logits of a network that says what the labels say; the rest is shared out."""
    known = torch.zeros(PLACES, WORDS, dtype=torch.float64)
    law = known.scatter_add(1, labels.places, labels.p)
    others = law == 0
    return (law + others * (labels.rest / others.sum(1))[:, None]).clamp_min(1e-12).log()


@pytest.mark.parametrize("name", [name for name in SURE if name not in HELD_FIXED])
def test_a_loss_has_the_gradient_of_finite_differences(name):
    labels, generator = some_labels(), torch.Generator()
    assert torch.autograd.gradcheck(lambda x: LOSSES[name](x, labels, generator), (some_logits(),))


@pytest.mark.parametrize("name", SURE)
def test_a_loss_is_zero_for_the_targets_own_law_and_above_for_others(name):
    labels, generator = some_labels(), torch.Generator()
    assert LOSSES[name](of_target(labels), labels, generator).abs().max() < 1e-3
    assert LOSSES[name](some_logits(), labels, generator).min() > 0.01


def test_the_laws_of_one_token_against_another_are_as_far_apart_as_the_formulas_say():
    """p = (0.75, 0.25), q = (0.5, 0.5)."""
    p, q = torch.tensor([0.75, 0.25]).double(), torch.tensor([[0.5, 0.5]]).double()
    labels = labels_of(torch.tensor([[0]]), p[:1].log()[None], p[1:], torch.tensor([0, 1]))
    middle = (p + q[0]) / 2
    wanted = {
        "forward_kl": (p * (p / q[0]).log()).sum(),
        "reverse_kl": (q[0] * (q[0] / p).log()).sum(),
        "jsd": ((p * (p / middle).log()).sum() + (q[0] * (q[0] / middle).log()).sum()) / 2,
        "tvd": torch.tensor(0.25).double(),
        "lk": -torch.tensor(0.75).double().log(),
        "lk_mixed": math.exp(-2.25) * (p * (p / q[0]).log()).sum() + (1 - math.exp(-2.25)) * 0.25,
    }
    found = {name: LOSSES[name](q.log(), labels, torch.Generator())[0] for name in SURE}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def gradient(loss: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad(loss, logits)
    return found


def test_losses_on_the_overlap_have_the_gradient_of_the_total_variation_where_they_should():
    """`lk`: over the overlap; `lk_mixed`: mixed with the divergence's by a share that is not learnt."""
    labels, logits, generator = some_labels(), some_logits(), torch.Generator()
    shared = overlap(laws_of(logits, labels)).detach()[:, None]
    refused, apart = (gradient(LOSSES[name](logits, labels, generator).sum(), logits) for name in ("tvd", "forward_kl"))
    found, mixed = (gradient(LOSSES[name](logits, labels, generator).sum(), logits) for name in ("lk", "lk_mixed"))
    torch.testing.assert_close(found, refused / shared)
    share = (-3 * shared).exp()
    torch.testing.assert_close(mixed, share * apart + (1 - share) * refused)
    assert not torch.allclose(found, apart, atol=0.05)  # the divergence pulls another way
    surely = labels_of(torch.tensor([[3]]), torch.zeros(1, 1), torch.zeros(1), torch.arange(WORDS))
    one = some_logits()[:1]
    cross_entropy = -torch.log_softmax(one, 1)[0, 3]
    torch.testing.assert_close(LOSSES["lk"](one, surely, generator)[0].double(), cross_entropy.double())


def mean_gradient(labels: Labels, logits: torch.Tensor, advantage) -> torch.Tensor:
    """The gradient of `policy_gradient` in the mean over what may be drawn: every outcome, by its probability."""
    laws = laws_of(logits, labels)
    outcomes = range(laws.q.shape[1])
    each = [policy_gradient(laws, torch.full((PLACES, 1), one), advantage(laws)[:, one : one + 1]) for one in outcomes]
    weighted = [laws.q.detach()[:, one] * value for one, value in zip(outcomes, each, strict=True)]
    return gradient(torch.stack(weighted).sum(), logits)


def test_rewarding_what_the_target_holds_likelier_has_the_gradient_of_the_total_variation():
    labels, logits = some_labels(), some_logits()
    wanted = gradient(total_variation(logits, labels).sum(), logits)
    torch.testing.assert_close(mean_gradient(labels, logits, rewards), wanted)
    with_baseline = mean_gradient(labels, logits, lambda laws: (rewards(laws) - 0.3) / 0.2)
    torch.testing.assert_close(with_baseline, wanted / 0.2)  # the baseline drops out, the spread is a factor
    other = mean_gradient(labels, logits, lambda laws: 1 - rewards(laws))
    assert not torch.allclose(other, wanted, atol=0.05), "the opposite reward has another gradient"


def test_the_mean_of_what_is_drawn_nears_the_total_variations_gradient():
    labels, logits = some_labels(), some_logits()
    wanted = gradient(total_variation(logits, labels).sum(), logits).flatten()
    generator, total = torch.Generator().manual_seed(0), torch.zeros(PLACES * WORDS, dtype=torch.float64)
    for _ in range(400):
        total += gradient(distillation.aligned(logits, labels, generator).sum(), logits).flatten()
    assert torch.cosine_similarity(total, wanted, dim=0) > 0.99


def spread_of(advantage, rounds: int = 400) -> float:
    """Variance of the estimated gradient, summed over all logits, relative to the squared length of its mean."""
    labels, logits, generator = some_labels(), some_logits(), torch.Generator().manual_seed(3)
    laws, found = laws_of(logits, labels), []
    for _ in range(rounds):
        drawn = torch.multinomial(laws.q.detach(), distillation.DRAWS, replacement=True, generator=generator)
        loss = policy_gradient(laws, drawn, advantage(rewards(laws).gather(1, drawn))).sum()
        found.append(torch.autograd.grad(loss, logits, retain_graph=True)[0].flatten())
    each = torch.stack(found)
    return float(each.var(dim=0).sum() / each.mean(dim=0).square().sum())


def test_a_normalised_advantage_has_less_variance_than_the_reward_alone():
    plain, with_baseline = spread_of(lambda rewards: rewards), spread_of(normalised)
    assert with_baseline < 0.8 * plain
    assert spread_of(lambda rewards: rewards + 1) > plain, "a baseline on the wrong side has more"


def test_what_is_normalised_has_a_mean_of_0_and_a_spread_of_1():
    found = normalised(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    assert float(found.mean()) == pytest.approx(0, abs=1e-6)
    assert float(found.std(correction=0)) == pytest.approx(1)
    assert normalised(torch.ones(2, 3)).abs().max() == 0, "where all are rewarded there is nothing to learn"


def test_the_places_with_most_to_learn_are_the_top_two_fifths_by_difference():
    noise = torch.Generator().manual_seed(4)
    own, others = torch.rand(50, generator=noise), torch.rand(50, generator=noise)
    nowhere = torch.zeros(50, dtype=torch.bool)
    chosen = behind(own - others, nowhere)
    assert int(chosen.sum()) == 20
    assert (own - others)[chosen].min() > (own - others)[~chosen].max()
    assert not torch.equal(chosen, behind(own, nowhere)), "the reference matters"


# --------------------------------------------------------------------------------------------- whole texts


@pytest.fixture(scope="module")
def model():
    return target(forgetful=True)


@pytest.fixture(scope="module")
def corpus(model, tmp_path_factory):
    reading = StateReading(model, "ab" * 32, tmp_path_factory.mktemp("states"))
    return Corpus([reading.shard(some_texts(60))], STEPS, reads_back=True)


def draft_model(model, corpus, seed: int = 0):
    sizes = FAMILIES["draft_model"].load().sizes_for(model.network.shape, ())
    return new_network("draft_model", sizes, shared_with(model, corpus, V), torch.Generator().manual_seed(seed))


def test_only_the_selected_places_are_learnt_from(model, corpus):
    network, reference = draft_model(model, corpus), draft_model(model, corpus, 1)
    batch, _ = next(corpus.epoch(0, 0, 4))
    columns, generator = columns_of(network.shared.tokens, V), torch.Generator()
    rows, places = batch.drafted(1, batch.tokens.shape[1] - 1).nonzero(as_tuple=True)
    labels = labels_at(batch, rows, places + 1, columns)

    def each(one) -> torch.Tensor:
        (states,) = one.states(one.fused(batch.features), batch.tokens, 1)
        return LOSSES["forward_kl"](logits_of(one, states[rows, places]), labels, generator)

    own, others = each(network).detach(), each(reference).detach()
    loss, count = Distillation(LOSSES["forward_kl"], reference)(network, batch, columns, 1, generator)
    best = (own - others).topk(round(0.4 * len(own))).indices
    assert count == len(best)
    torch.testing.assert_close(loss.detach(), own[best].mean())
    wanted = columns[batch.likeliest[rows, places + 1, 0]]
    (states,) = reference.states(reference.fused(batch.features), batch.tokens, 1)
    wrong = reference.logits(states[rows, places]).argmax(1) != wanted
    loss_where_wrong, wrongs = Distillation(LOSSES["forward_kl"], reference, wrong_guesses)(
        network, batch, columns, 1, generator
    )
    assert 0 < wrongs == int(wrong.sum()) < len(own)
    torch.testing.assert_close(loss_where_wrong.detach(), own[wrong].mean())
    everywhere, places_there = Distillation(LOSSES["forward_kl"])(network, batch, columns, 1, generator)
    assert places_there == len(own)
    torch.testing.assert_close(everywhere.detach(), own.mean())
    loss.backward()
    assert all(parameter.grad is None for parameter in reference.parameters())


def test_of_texts_those_are_learnt_from_of_which_the_reference_guesses_less_than_on_average(model, corpus):
    reference = draft_model(model, corpus)
    columns = columns_of(reference.shared.tokens, V)
    kept = unreproduced(corpus, reference, columns, 7)

    def share(place) -> float:
        measured = copy.copy(corpus)
        measured.held_out = [place]
        (batch,) = measured.unseen(1)
        rows, places = batch.drafted(1, batch.tokens.shape[1] - 1).nonzero(as_tuple=True)
        (states,) = reference.states(reference.fused(batch.features), batch.tokens, 1)
        guesses = reference.logits(states[rows, places]).argmax(1)
        return float((guesses == columns[batch.likeliest[rows, places + 1, 0]]).float().mean())

    mean = sum(map(share, corpus.learnt)) / len(corpus.learnt)
    assert kept.learnt == [place for place in corpus.learnt if share(place) < mean]
    assert kept.held_out == [place for place in corpus.held_out if share(place) < mean]
    assert 0 < len(kept.learnt) < len(corpus.learnt)
    assert 0 < len(kept.held_out) < len(corpus.held_out), "progress is measured on such texts too"
    alike = corpus.below_average(lambda batch: torch.ones(len(batch.tokens)), 7)
    assert alike.learnt == corpus.learnt, "where none is guessed worse than others all stay"


KINDS, WORDS_OF_KINDS, SIZE = (0.6, 0.25, 0.15), 12, 32


def texts_of_kinds(seed: int, count: int, chance: torch.Generator):
    """A target that goes on from a word in one of three ways, as the first token says; texts of it, their shares being
    `KINDS`."""
    made, first = torch.Generator().manual_seed(seed), len(KINDS)
    next_words = [first + torch.randperm(WORDS_OF_KINDS, generator=made) for _ in KINDS]

    def following(text) -> int:
        return int(next_words[text[0]][text[-1] - first])

    def says(text) -> torch.Tensor:
        logits = torch.zeros(SIZE)
        if text[0] < first <= text[-1]:
            logits[following(text)] = 6.0
        return logits

    texts = []
    for index, kind in enumerate(torch.multinomial(torch.tensor(KINDS), count, True, generator=chance).tolist()):
        text = [kind, *(first + torch.randint(WORDS_OF_KINDS, (4,), generator=chance)).tolist()]
        while len(text) < 17:
            text.append(following(text))
        texts.append(TrainingText(index, text[:5], text[5:], greedy=True))
    return ScriptedModel(SIZE, says), texts


def gained_by_a_second(seed: int, folder) -> dict[str, float]:
    """The share of places in texts never learnt from that a second draft model guesses, and the first does not."""
    chance = torch.Generator().manual_seed(seed)
    target_of_kinds, texts = texts_of_kinds(seed, 320, chance)
    reading = StateReading(target_of_kinds, "ab" * 32, folder, states=False)
    learnt, other = (
        Corpus([reading.shard(some)], STEPS, reads_back=True, reads_states=False) for some in (texts[:240], texts[240:])
    )
    other.held_out = [(0, text) for text in range(80)]
    (batch,) = other.unseen(80)
    rows, places = batch.drafted(1, batch.tokens.shape[1] - 1).nonzero(as_tuple=True)
    table, head = torch.randn(2, SIZE, 32, generator=chance)
    shared = SharedWeights(table.__getitem__, torch.arange(SIZE), 0.5 * head)
    sizes = DraftModelSizes(32, epsilon=1e-5, layers=1, inner=32, heads=2, kv_heads=2, head_dim=16)

    def guessed(seed, corpus, loss, name):
        network = new_network("draft_model", sizes, shared, torch.Generator().manual_seed(seed))
        (folder / name).mkdir()
        schedule = Schedule(TOKENS_OF_KINDS, 0.0, 1.2e-2, 10**9)
        about = (network, corpus, schedule, folder / name, SIZE, STEPS, 8, seed, {})
        Fitting(*about, loss=loss).run(lambda standing: None)
        with torch.no_grad():
            (states,) = network.states(batch.features, batch.tokens, 1)
            return network, network.logits(states[rows, places]).argmax(1) == batch.likeliest[rows, places + 1, 0]

    loss = Distillation(LOSSES["forward_kl"])
    first, found = guessed(0, learnt, loss, "first")
    rest = unreproduced(learnt, first, torch.arange(SIZE), 16)
    of_places = Distillation(LOSSES["forward_kl"], first, SELECTIONS["missed"])
    seconds = {
        "seed": guessed(1, learnt, loss, "seed"),
        "prompts": guessed(1, rest, loss, "prompts"),
        "missed": guessed(1, learnt, of_places, "missed"),
    }
    return {name: float((also & ~found).float().mean()) for name, (_, also) in seconds.items()}


TOKENS_OF_KINDS = 10000


@pytest.mark.slow
def test_two_boosted_draft_models_guess_more_places_than_two_copies_or_two_seeds(tmp_path):
    """Three targets with texts of three kinds. Every second one sees as many tokens; two copies gain nothing."""
    gained = [gained_by_a_second(seed, folder) for seed in range(3) if not (folder := tmp_path / str(seed)).mkdir()]
    assert min(one["prompts"] for one in gained) > 0.05, gained
    for boosted in ("prompts", "missed"):
        assert all(one[boosted] > 1.2 * one["seed"] for one in gained), gained


class SaysLogitsTimes:
    """A draft model whose logits are the target's own, times a factor."""

    def __init__(self, model, factor: float) -> None:
        self._model, self._factor = model, factor

    def fused(self, features):
        return features[..., -1, :]

    def states_by_depth(self, fused, tokens):
        return [fused[:, 1:]]

    def logits(self, states):
        return self._factor * self._model.head(states)


@pytest.mark.parametrize("name", SURE)
def test_a_draft_model_that_says_what_the_target_says_has_learnt_all_there_is(model, corpus, name):
    batch, _ = next(corpus.epoch(0, 0, 8))
    loss = Distillation(LOSSES[name])
    right, sharp, flat = (
        float(loss(SaysLogitsTimes(model, factor), batch, torch.arange(V), 1, torch.Generator())[0])
        for factor in (1.0, 1.25, 0.8)
    )
    assert right < 0.004, "states are kept in bfloat16, probabilities in float16"
    assert min(sharp, flat) > 5 * right + 0.01, "any other law is further away"


def fitted(model, corpus, folder, loss: str, tokens: int = 600) -> Fitting:
    schedule, about = Schedule(tokens, 0.0, 2e-2, 2000), {"loss": loss}
    network = draft_model(model, corpus)
    return Fitting(network, corpus, schedule, folder, V, STEPS, 4, 0, about, loss=Distillation(LOSSES[loss]))


def held_out(network, corpus, loss) -> float:
    columns = columns_of(network.shared.tokens, V)
    with torch.no_grad():
        return float(
            sum(Distillation(loss)(network, batch, columns, 1, torch.Generator())[0] for batch in corpus.unseen(16))
        )


@pytest.mark.parametrize("loss", LOSSES)
def test_a_training_lowers_the_distance_on_texts_that_were_never_learnt_from(model, corpus, tmp_path, loss):
    def refused(logits, labels, generator):
        return total_variation(logits, labels)

    fit = fitted(model, corpus, tmp_path, loss)
    measured = refused if loss == "tvd_plus_plus" else LOSSES[loss]
    before = held_out(fit.network, corpus, measured), held_out(fit.network, corpus, refused)
    fit.run(lambda standing: None)
    assert held_out(fit.network, corpus, measured) < 0.9 * before[0]
    assert held_out(fit.network, corpus, refused) < before[1] - 0.05, "a p/q rule refuses less"


def test_a_training_that_was_cut_off_goes_on_to_the_same_weights(model, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "_CHECKPOINT_S", 0.0)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = fitted(model, corpus, tmp_path / "whole", "tvd_plus_plus")
    whole.run(lambda standing: None)

    def interrupt(standing):
        if standing.batches == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(model, corpus, tmp_path / "parts", "tvd_plus_plus").run(interrupt)
    with pytest.raises(TrainingError, match="was made with loss = tvd_plus_plus, not jsd"):
        fitted(model, corpus, tmp_path / "parts", "jsd")
    again = fitted(model, corpus, tmp_path / "parts", "tvd_plus_plus")
    assert again.standing.batches == 5
    again.run(lambda standing: None)
    assert again.standing.curve == whole.standing.curve
    for one, other in zip(whole.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, other)


# ---------------------------------------------------------------------------------------------- by name


def test_the_losses_are_those_that_a_request_may_name():
    assert tuple(LOSSES) == training_limits.LOSSES
    assert (*SELECTIONS, training_limits.BOOSTED) == training_limits.SELECTIONS


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("draft_model", "reverse_lk", "", ""), "--loss 'reverse_lk' is not one that can be learnt with; did you mean"),
        (("hydra", "tdv", "", ""), "--loss 'tdv' is not one that can be learnt with; did you mean 'tvd'"),
        (("mtp", "tvd", "", ""), "--loss is for networks of their own; mtp learns through the target"),
        (("hydra", "", "", "confident"), "--select 'confident' is not a way to select tokens; did you mean"),
        (("hydra", "", "", "behind"), "--select 'behind' is not a way to select tokens"),
        (("draft_model", "", "mine", "reached"), "--select 'reached' is not a way to select tokens"),
        (("eagle", "", "mine", ""), "--reference is for --drafter draft_model; eagle learns in chains"),
        (("draft_model", "", "mine", "mised"), "--select 'mised' is not a way to select tokens; did you mean 'missed'"),
        (("draft_model", "", "", "missed"), "--select missed needs --reference NAME"),
        (("hydra", "tree", "", "", ""), "--loss tree is a last stage; --from NAME is the trained drafter"),
        (("hydra", "tree", "", "reached", "mine"), "--select 'reached' is for other losses than --loss tree"),
        (("draft_model", "tree", "", "", "mine"), "--loss 'tree' is not one that can be learnt with"),
    ],
)
def test_a_loss_that_does_not_exist_or_does_not_belong_is_refused(given, said):
    with pytest.raises(UsageError, match=said):
        refuse_unknown_loss(*given)
    refuse_unknown_loss("draft_model", "jsd", "mine", "missed")
    refuse_unknown_loss("hydra", "", "", "")
    refuse_unknown_loss("hydra", "lk_mixed", "", "confidence")
    refuse_unknown_loss("hydra", "tree", "", "", "mine")
