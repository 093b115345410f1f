"""Replies that a draft model writes itself: drawn from its own law, labelled by the target, and worth their tokens."""

from __future__ import annotations

import pytest
import torch
from training_kit import END, REPLY, USER, V, plainly, target

from specchat.core.noise import Noise
from specchat.core.sampling import Sampling
from specchat.errors import UsageError
from specchat.models.draft_heads import FAMILIES
from specchat.models.draft_heads.head import STEPS
from specchat.models.draft_heads.loading import new_network
from specchat.training import fitting
from specchat.training.corpus import Corpus, shared_with
from specchat.training.distillation import LOSSES, Distillation, total_variation
from specchat.training.draft_texts import DraftTexts, written
from specchat.training.fitting import Fitting, Schedule
from specchat.training.limits import refuse_unknown_texts
from specchat.training.losses import columns_of
from specchat.training.states import StateReading
from specchat.training.texts import TrainingText

LEARNT, MEASURED = 24, 40


@pytest.fixture(scope="module")
def model():
    return target()


@pytest.fixture(scope="module")
def texts(model):
    """The target's own replies, drawn at temperature 1."""
    noise, found = torch.Generator().manual_seed(5), []
    for index in range(LEARNT + MEASURED):
        words = torch.randint(3, V, (4 + index % 3,), generator=noise).tolist()
        prompt = [USER, *words, REPLY]
        reply = plainly(model, prompt, Sampling(temperature=1.0), Noise(index), 12)
        found.append(TrainingText(index, prompt, reply, greedy=False))
    return found


@pytest.fixture(scope="module")
def shards(model, texts, tmp_path_factory):
    """Those that are learnt from, and those that are measured on."""
    reading = StateReading(model, "ab" * 32, tmp_path_factory.mktemp("states"))
    return reading.shard(texts[:LEARNT]), reading.shard(texts[LEARNT:])


@pytest.fixture(scope="module")
def corpus(shards):
    return Corpus(shards[:1], STEPS, reads_back=True, reads_states=False)


def draft_model(model, corpus):
    sizes = FAMILIES["draft_model"].load().sizes_for(model.network.shape, ())
    return new_network("draft_model", sizes, shared_with(model, corpus, V), torch.Generator().manual_seed(0))


def own_texts(model, corpus, folder, kind, first=1):
    reading = StateReading(model, "ab" * 32, folder, states=False)
    return DraftTexts(corpus, reading, folder / "written", kind, {END}, 0, first, "tiny", lambda says: None)


def fitted(model, corpus, folder, kind, tokens) -> Fitting:
    schedule, folder = Schedule(tokens, 0.0, 2e-2, 10**9), folder / kind
    folder.mkdir(exist_ok=True)
    made = None if kind == "target" else own_texts(model, corpus, folder, kind)
    network, loss = draft_model(model, corpus), Distillation(LOSSES["forward_kl"])
    return Fitting(network, corpus, schedule, folder, V, STEPS, 4, 0, {}, loss=loss, texts_of=made)


def accepted(network, shard) -> float:
    """How likely a p/q rule accepts a draw, along the target's own texts."""
    measured = Corpus([shard], STEPS, reads_back=True, reads_states=False)
    measured.held_out, columns = [(0, text) for text in range(MEASURED)], columns_of(network.shared.tokens, V)
    (batch,) = measured.unseen(MEASURED)
    with torch.no_grad():
        refused, _ = Distillation(lambda logits, labels, _: total_variation(logits, labels))(
            network, batch, columns, 1, torch.Generator()
        )
    return 1.0 - float(refused)


def test_each_token_is_drawn_from_the_networks_law_after_the_whole_text_before_it(model, corpus):
    """Without a cache, one text at a time: prompts differ in length, and some replies end early."""
    network = draft_model(model, corpus)
    with torch.no_grad():
        for _, parameter in network.named_parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    prompts, lengths = [[USER, 9, REPLY], [USER, *range(5, 12), REPLY], [USER, 4, 4, REPLY]], [6, 9, 3]
    ends = {END, *range(40, 50)}
    found = written(network, prompts, lengths, ends, torch.Generator().manual_seed(7))
    chance, wanted = torch.Generator().manual_seed(7), [list(prompt) for prompt in prompts]
    for _ in range(max(map(len, found))):
        after = []
        for text in wanted:
            after.append(law_after(network, text))
        drawn = network.shared.tokens[torch.multinomial(torch.stack(after), 1, generator=chance)[:, 0]]
        for text, token in zip(wanted, drawn.tolist(), strict=True):
            text.append(token)
    replies = [text[len(prompt) :] for text, prompt in zip(wanted, prompts, strict=True)]
    for reply, whole, length in zip(found, replies, lengths, strict=True):
        assert reply == whole[: len(reply)]
        assert len(reply) == length or (reply[-1] in ends and not ends & {*reply[:-1]})
    assert any(reply[-1] in ends for reply in found)
    assert any(len(reply) == length for reply, length in zip(found, lengths, strict=True))


def law_after(network, text):
    """(H,) the network's law after a text, which is read whole."""
    with torch.no_grad():
        (states,) = network.states(torch.empty(0), torch.tensor([text]), 1)
        return torch.softmax(network.logits(states[0, -1]), dim=0)


def test_learning_from_its_own_replies_is_worth_more_than_the_same_few_texts_again(model, corpus, shards, tmp_path):
    """The same prompts, steps and tokens that are learnt from; accepted is what the target writes elsewhere."""
    worth, seen = {}, {}
    for kind in ("target", "mixed", "draft"):
        fit = fitted(model, corpus, tmp_path, kind, 1300)
        fit.run(lambda standing: None)
        worth[kind], seen[kind] = accepted(fit.network, shards[1]), fit.standing.tokens
    assert max(seen.values()) - min(seen.values()) < 50
    assert worth["draft"] > worth["target"] + 0.03
    assert worth["mixed"] > worth["target"] + 0.015


def test_which_texts_are_its_own_and_the_target_says_what_follows_in_them(model, corpus, tmp_path):
    network = draft_model(model, corpus)
    before = [corpus.text(at) for at in range(len(corpus.learnt))]
    draft, mixed = (own_texts(model, corpus, tmp_path / kind, kind) for kind in ("draft", "mixed"))
    assert draft(network, 0) is corpus, "a network that begins with nothing would write noise"
    assert own_texts(model, corpus, tmp_path / "from", "draft", first=0)(network, 0) is not corpus
    one, other = mixed(network, 1), mixed(network, 2)
    for at, text in enumerate(before):
        assert draft(network, 1).text(at).prompt == text.prompt
        assert (one.text(at).reply == text.reply, other.text(at).reply == text.reply) == (at % 2 == 1, at % 2 == 0)
    assert one.held_out == corpus.held_out
    (batch, _) = next(draft(network, 1).epoch(0, 0, 1))
    reading = StateReading(model, "ab" * 32, tmp_path)
    number = int(torch.randperm(len(before), generator=torch.Generator().manual_seed(0))[0])
    labelled = reading.shard([draft(network, 1).text(number)])
    said = slice(int(labelled.replies[0]) - 1, len(labelled.tokens))
    torch.testing.assert_close(batch.log_p[0][said], labelled.log_p[said].float())
    assert batch.features.shape[2:] == (0, 0)


def test_a_training_with_its_own_replies_that_was_cut_off_goes_on_to_the_same_weights(
    model, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(fitting, "_CHECKPOINT_S", 0.0)
    whole = fitted(model, corpus, tmp_path, "draft", 900)
    whole.run(lambda standing: None)
    (tmp_path / "parts").mkdir()

    def interrupt(standing):
        if standing.batches in (9, 13):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fitted(model, corpus, tmp_path / "parts", "draft", 900).run(interrupt)
    again = fitted(model, corpus, tmp_path / "parts", "draft", 900)
    again.run(lambda standing: None)
    assert again.standing.batches == whole.standing.batches > 18
    for one, other in zip(whole.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, other)
    assert len(list((tmp_path / "draft" / "written").iterdir())) == 1, "earlier epochs are removed"


def test_texts_that_nobody_writes_are_refused():
    with pytest.raises(UsageError, match="--texts 'drafts' is not one of target, draft, mixed; did you mean 'draft'"):
        refuse_unknown_texts("draft_model", "drafts")
    with pytest.raises(UsageError, match="--texts mixed is for --drafter draft_model; hydra writes no texts by itself"):
        refuse_unknown_texts("hydra", "mixed")
    refuse_unknown_texts("hydra", "target")
    refuse_unknown_texts("draft_model", "")
