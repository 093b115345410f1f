"""Judge Decoding: what a linear judge lets stand, and how it is fitted to labels that it makes itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from contracts.kit import V, context_for, plain_text, random_tree, scripted_draft, scripted_target, speak
from contracts.tiny_networks import tiny_resources
from safetensors.torch import save_file

from specchat.acceptance.judge import Judge, JudgeHead
from specchat.acceptance.options import JudgeOptions
from specchat.acceptance.walk import own_token
from specchat.config.trained_drafters import JUDGE, WEIGHTS
from specchat.core.request import PassRequest
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT
from specchat.decoding.assemble import assemble
from specchat.decoding.teacher_forcing import chain
from specchat.errors import CombinationError, TrainingError, WeightsError
from specchat.models.backends.scripted import ScriptedModel
from specchat.settings import Settings
from specchat.training.judge import Labelled, auc, fitted, labelled, write_judge

TREE = {"drafter": "draft_model", "policy": "expansion", "controller": "fixed", "nodes": 8, "depth": 4, "rule": "judge"}
HEAD = JudgeHead(0, torch.randn(V, generator=torch.Generator().manual_seed(1)), 0.0)
THRESHOLDS = (1.0, 0.8, 0.5, 0.2, 0.0)


def test_with_threshold_1_the_text_is_the_targets_and_below_it_is_not():
    texts = {}
    for threshold in (1.0, 0.2):
        settings = Settings().but({**TREE, "method_options": {"judge.threshold": threshold}})
        target = scripted_target()
        speculator = assemble(settings, target, scripted_draft(), resources=tiny_resources(target))
        texts[threshold], _ = speak(speculator, 40, context_for())
    assert texts[1.0] == plain_text(scripted_target(), 40)
    assert texts[0.2] != texts[1.0]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
def test_the_accepted_path_grows_as_the_threshold_falls(sampling):
    target, lengths = scripted_target(), dict.fromkeys(THRESHOLDS, 0)
    for seed in range(20):
        context, tree = context_for(sampling, seed), random_tree(V, 12, seed)
        target.prefill(context.history[:-1])
        reading = target.read(tree, request=PassRequest(taps=frozenset({0})))
        paths = [Judge(JudgeOptions(threshold=t), HEAD).judge(tree, reading, context).path for t in THRESHOLDS]
        scores = HEAD.scores(reading.taps[0])
        for node, child in itertools.pairwise([ROOT, *paths[-1]]):
            surest = max(tree.children(node), key=scores.__getitem__)
            assert child == surest or tree.tokens[child] == own_token(tree, node, reading, context)
        for (less, more), threshold in zip(itertools.pairwise(paths), THRESHOLDS[1:], strict=True):
            assert more[: len(less)] == less
            lengths[threshold] += len(more)
    found = [lengths[threshold] for threshold in THRESHOLDS[1:]]
    assert found == sorted(found)
    assert found[0] < found[-1]


# ------------------------------------------------------------------------------------------------ fitting

END, USER, REPLY, SO, THUS, DOUBT = 0, 1, 2, 13, 14, 15
DIGITS = range(3, 13)


class Digits:
    """Ten digits, two words that mean the same, and a token of doubt. A task is one digit."""

    size = 16
    eos_ids = frozenset({END})

    def token_bytes(self, token):
        return f" {token - 3}".encode() if token in DIGITS else b" so" if token in (SO, THUS) else b""

    def encode_chat(self, messages):
        return [USER, 3 + int(messages[0]["content"]), REPLY]


def says(text):
    """The reply `so d so d` to the task d. The target goes on with a digit that was planted, and its state shows it."""
    if REPLY not in text:
        return torch.zeros(16)
    reply, asked = text[text.index(REPLY) + 1 :], text[text.index(REPLY) - 1]
    logits = torch.linspace(-1.0, -2.0, 16)
    if len(reply) == 4:
        logits[END] = 9.0
    elif len(reply) % 2:
        digits = [token for token in reply if token in DIGITS]
        logits[list(DIGITS)] += 5.0
        logits[digits[-1] if digits else asked] = 9.0
    else:
        logits[SO], logits[THUS] = 9.0, 8.0
    if reply and reply[-1] in DIGITS and reply[-1] != asked:
        logits[DOUBT] = 3.0
    return logits


def test_a_planted_wrong_digit_is_refused_and_a_synonym_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    model, vocabulary = ScriptedModel(16, says), Digits()
    labels = labelled(model, vocabulary, (str(at % 10) for at in range(40)), 4000)
    wrong = [one for one in labels if not one.right]
    assert len(labels) == 40 * (4 + 1 + 2 + 1 + 2), "its own tokens, one other word and two other digits"
    assert len(wrong) == 40 * 2 * 2, "other digits change the answer, other words do not"
    judge = fitted(labels)
    assert judge.auc > 0.95
    about = {"target": "digits", "target_sha256": "ab" * 32, "licence": "none", "data": {}}
    trained = write_judge("digits-judge", judge, 0, about, len(labels))
    head = JudgeHead.read(trained, 16, 1)
    prompt = vocabulary.encode_chat([{"content": "7"}])
    model.prefill(prompt)
    reading = model.read(chain([THUS, DIGITS[2]], 16), request=PassRequest(taps=frozenset({0})))
    synonym, planted = head.scores(reading.taps[0])
    assert planted < 0.5 < synonym


def test_labels_of_one_kind_alone_are_refused():
    labels = [Labelled(torch.randn(4), True, task) for task in range(100)]
    with pytest.raises(TrainingError, match="too few are of one kind"):
        fitted(labels)
    assert auc(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([True, False, False])) == 0.75


# --------------------------------------------------------------------------------------------- the weights


def test_without_weights_the_rule_is_refused_with_how_to_get_some():
    with pytest.raises(CombinationError, match=r"rule 'judge' needs weights .*--drafter judge.*nearest .*'follow'"):
        assemble(Settings().but(TREE), scripted_target(), scripted_draft())


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"weight": torch.zeros(V + 1), "bias": torch.zeros(1)},
        {"weight": torch.full((V,), torch.nan), "bias": torch.zeros(1)},
        {"weight": torch.zeros(V, dtype=torch.float16), "bias": torch.zeros(1)},
    ],
)
def test_weights_of_another_shape_are_refused(tensors, tmp_path, monkeypatch):
    target = scripted_target()
    [found] = [one for one in tiny_resources(target).trained.fitting if one.method == JUDGE]
    assert JudgeHead.read(found, V, 1).weight.shape == (V,)
    save_file(tensors, tmp_path / WEIGHTS)
    monkeypatch.setattr(type(found), "weights", property(lambda self: tmp_path / WEIGHTS))
    with pytest.raises(WeightsError, match="holds no judge for states of 23 numbers"):
        JudgeHead.read(found, V, 1)
