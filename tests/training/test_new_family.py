"""A family of trained networks is one file and one line of the table: it is trained, saved, loaded, and drafts."""

from __future__ import annotations

import pytest
import torch
from training_kit import CHECKSUM, V, subject
from training_kit import target as tiny_target

from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.errors import UsageError
from specchat.models.draft_heads import FAMILIES, TrainedFamily
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import load_network
from specchat.training import job, texts
from specchat.training.job import Job
from specchat.training.learning_network import LearningNetwork
from specchat.training.limits import refuse_unknown_method, training_cost
from specchat.training.training_request import TrainingRequest
from tests.training.training_kit import unroll

LINE = TrainedFamily("mixing", "tests.training.mixing_head:MixingHead", 1000.0)


def test_a_family_that_has_a_file_and_a_line_is_trained_saved_loaded_and_drafts(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="'mixing' is not one that can be trained"):
        refuse_unknown_method("mixing")
    monkeypatch.setitem(FAMILIES, LINE.method, LINE)
    refuse_unknown_method("mixing")
    assert training_cost("mixing", 1000, 10**8, 576).seconds > 0

    monkeypatch.setattr(job, "_MEASUREMENTS", 3)
    monkeypatch.setattr(texts, "REPLY_TOKENS", 24)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"w{a} w{b} w5 w{a}" for a in range(3, 12) for b in range(20, 28)))
    about = subject(tiny_target(forgetful=True))
    trained = Job(TrainingRequest("tiny", "mixing", str(prompts), 1500, 0.0, "mine"), about, lambda stage: None).run()
    assert (trained.method, trained.target_sha256) == ("mixing", CHECKSUM)
    curve = trained.figures["curve_tau"]
    assert max(curve) > curve[0], "it has learnt something"

    target, text, last = about.model, [1, *range(3, 40)], 30
    network = load_network("mixing", trained.options, trained.weights, lambda tokens: SharedWeights.of(target, tokens))
    taken: list[TextStates] = []
    target.prefill(())
    target.prefill(text, tap=HiddenStateSink(frozenset(network.sizes.taps), taken.append))
    features = torch.stack([taken[0].layers[layer] for layer in network.sizes.taps], dim=1)
    expected = unroll(network, features[None], torch.tensor([text]), 2)

    drafting = LearningNetwork(target, trained, V)
    known = {layer: rows[: last + 1] for layer, rows in taken[0].layers.items()}
    drafting.take(TextStates(0, tuple(text[: last + 1]), known))
    assert drafting.begin(text[: last + 2])
    tree, node = TokenTree(text[last + 1], V), ROOT
    for step, logits in enumerate(expected, 1):
        said = drafting.read(tree, [node]).logits[0, : len(network.shared.tokens)]
        torch.testing.assert_close(said, logits[0, last], rtol=1e-4, atol=1e-4)
        node = tree.add(node, Guess(text[last + 1 + step]))
    assert drafting.passes == 2
