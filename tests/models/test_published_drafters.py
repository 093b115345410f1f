"""Published EAGLE-3 checkpoints, in both layouts, guess what their own formulas say; strange ones are refused."""

from __future__ import annotations

import json

import pytest
import torch
from contracts.models import shared_network
from eagle3_checkpoints import LAYOUTS, checkpoint, said_by, with_tap_norms
from rows import each_row
from tiny_models import tiny_folder
from typer.testing import CliRunner

from specchat.cli import app
from specchat.config import own_drafters_dir
from specchat.config.trained_drafters import WEIGHTS, read_drafter, write_drafter
from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.errors import ModelError, SpecchatError, WeightsError
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.published_drafter import TargetSizes, read_eagle3, write_eagle3
from specchat.training.learning_network import LearningNetwork

TARGET = TargetSizes(hidden=32, layers=3, vocab_size=61)
NAMED = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
TEXT = [3, 5, 9, 5, 3, 7, 9, 2, 5, 3, 11, 4]


def added(folder, made):
    """A checkpoint as a trained drafter."""
    sizes, tensors = read_eagle3(folder, TARGET)
    made.mkdir()
    write_eagle3(tensors, made / WEIGHTS)
    said = {"target": "tiny", "target_sha256": "ab" * 32, "licence": "MIT", "data": {}, "figures": {}}
    write_drafter(made, method="eagle", options=sizes.options(), **said)
    return read_drafter(made, ("eagle",))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norms", [(), ("fc_norm", "norm_output"), ("norm_before_fc",)])
def test_a_checkpoint_guesses_what_its_own_formulas_say(layout, norms, tmp_path):
    """Those of EAGLE-3.1, whose norms' factors are multiplied into a matrix of bfloat16, a little less exactly."""

    def add_norms(tensors):
        for name in norms:
            with_tap_norms(tensors, name)

    asked = dict.fromkeys(norms, True)
    nested = {"eagle_config": asked} if layout == "authors" else asked
    tensors = checkpoint(tmp_path / "published", layout, change=add_norms, **nested, **NAMED)
    target = ReferenceModel(shared_network("llama"), 64)
    network = LearningNetwork(target, added(tmp_path / "published", tmp_path / "made"), 4)
    taken: list[TextStates] = []
    target.prefill(TEXT[:-1], tap=HiddenStateSink(network.layers, taken.append))
    for states in taken:
        network.take(states)
    assert network.layers == {0, 1, 2}
    assert network.begin(TEXT)
    tree = TokenTree(TEXT[-1], 61)
    first = tree.add(ROOT, Guess(8))
    second = tree.add(first, Guess(40))
    got = [network.read(tree, [node]) for node in (ROOT, first, second)]

    def embed(tokens):
        own = tensors.get("embed_tokens.weight")
        return target.embed(tokens) if own is None else own.bfloat16().float()[tokens]

    features = torch.cat([taken[0].layers[layer] for layer in (0, 1, 2)], dim=-1)
    about = features, embed(TEXT[1:]), embed([8, 40]), layout == "speculators"
    truth = said_by(tensors, *about, norm_output="norm_output" in norms)
    allowed = 2e-2 if norms else 1e-3
    for one, other in zip(got, truth, strict=True):
        assert one.possible.tolist() == list(range(0, 60, 3)), "the tokens that d2t names, and no others"
        torch.testing.assert_close(one.logits[0], other, rtol=allowed, atol=allowed)
    if norms:
        without = said_by({k: t for k, t in tensors.items() if "_norm." not in k or "hidden" in k}, *about)
        assert (without[-1] - truth[-1]).abs().max() > 10 * allowed, "the norms change what it says"


def test_states_are_taken_where_the_authors_take_them_unless_the_file_says_otherwise(tmp_path):
    checkpoint(tmp_path / "a", "authors")
    sizes, _ = read_eagle3(tmp_path / "a", TargetSizes(32, 28, 61))
    assert sizes.taps == (1, 13, 24)
    checkpoint(tmp_path / "b", "speculators", eagle_aux_hidden_state_layer_ids=[4, 9])
    sizes, _ = read_eagle3(tmp_path / "b", TargetSizes(32, 28, 61))
    assert sizes.taps == (3, 8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rotation_that_is_stretched_is_kept(layout, tmp_path):
    scaled = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    checkpoint(tmp_path / "plain", layout, **NAMED)
    checkpoint(tmp_path / "scaled", layout, layer={"rope_scaling": scaled}, **NAMED)
    plain, stretched = (read_eagle3(tmp_path / name, TARGET)[1]["frequencies"] for name in ("plain", "scaled"))
    torch.testing.assert_close(plain, 500.0 ** -(torch.arange(0, 8, 2) / 8))
    assert stretched[-1] < plain[-1]


@each_row("layout", LAYOUTS)
@each_row(
    ("changes", "said"),
    [
        ({"change": lambda t: t.pop("fc.weight")}, "has no tensor fc.weight"),
        ({"change": lambda t: t.pop("d2t")}, "no tensor d2t that says which"),
        ({"change": lambda t: t.update(d2t=torch.full((20,), 50))}, "d2t names tokens that a target of 61"),
        ({"change": lambda t: t.update(d2t=-torch.arange(20))}, "d2t names a token twice"),
        ({"change": lambda t: t.update(d2t=torch.full((20,), 0.5))}, "d2t holds torch.float32, not whole numbers"),
        (
            {"change": lambda t: t.update({"norm.weight": torch.full((32,), torch.nan)})},
            "norm.weight has .* not finite",
        ),
        (
            {"change": lambda t: t.update({"lm_head.weight": torch.zeros(0, 32), "d2t": torch.zeros(0, dtype=int)})},
            "has a head of 0 tokens",
        ),
        ({"change": lambda t: t.update({"lm_head.weight": torch.zeros(())})}, "has no tensor lm_head.weight"),
        ({"change": lambda t: t.update({"norm.weight": torch.ones(33)})}, r"norm.weight is \(33,\), not \(32,\)"),
        ({"change": lambda t: t.update({"self_attn.q_proj.bias": torch.ones(32)})}, "is not part of an EAGLE-3 layer"),
        ({"layer": {"num_hidden_layers": 2}}, "num_hidden_layers = 2, and EAGLE-3 has 1"),
        ({"layer": {"model_type": "qwen3"}}, "model_type = 'qwen3' is not 'llama'"),
        ({"layer": {"hidden_act": "relu"}}, "activation relu"),
        ({"layer": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}}, "rotation 'yarn'"),
        ({"norm_output": "yes"}, "norm_output = 'yes' is not true or false"),
        ({"fc_norm": True}, "has no tensor fc_norm.0.weight"),
        ({"norm_before_fc": True}, "has no tensor input_norm.weight"),
        ({"fc_norm": True, "norm_before_fc": True}, "both fc_norm and norm_before_fc"),
        ({"change": lambda t: t.update({"fc_norm.0.weight": torch.ones(32)})}, "is not part of an EAGLE-3 layer"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 1, 3]}, "not ascending layers of a target with 3"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, "not ascending layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "not ascending layers"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(layout, changes, said, tmp_path):
    checkpoint(tmp_path / "published", layout, **{**NAMED, **changes})
    with pytest.raises(SpecchatError, match=said) as refused:
        read_eagle3(tmp_path / "published", TARGET)
    assert "\n" not in str(refused.value)


def test_a_checkpoint_for_a_target_of_another_width_is_refused(tmp_path):
    checkpoint(tmp_path / "published", "authors", hidden=48)
    with pytest.raises(ModelError, match="states of 48 numbers, the target's have 32"):
        read_eagle3(tmp_path / "published", TARGET)


def test_pickles_are_never_read(tmp_path):
    checkpoint(tmp_path / "published", "authors", **NAMED)
    (tmp_path / "published" / "model.safetensors").rename(tmp_path / "published" / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"has no \.safetensors, and pickles are never read"):
        read_eagle3(tmp_path / "published", TARGET)


def test_the_command_adds_a_checkpoint_for_a_target_that_is_here(tmp_path):
    tiny_folder(tmp_path / "target")
    vocab_size = json.loads((tmp_path / "target" / "config.json").read_text())["vocab_size"]
    checkpoint(
        tmp_path / "published",
        "authors",
        64,
        vocab_size,
        layer={"head_dim": 8},
        eagle_aux_hidden_state_layer_ids=[1, 2],
    )
    run = CliRunner()
    assert run.invoke(app, ["models", "add", "mine", "--target", str(tmp_path / "target")]).exit_code == 0
    arguments = ["models", "add", "fast", "--target", "mine", "--drafter", str(tmp_path / "published")]
    result = run.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "added fast, an eagle drafter" in result.output
    drafter = read_drafter(own_drafters_dir() / "fast", ("eagle",))
    assert (drafter.method, drafter.options["taps"]) == ("eagle", [0, 1])
    assert {file.stat().st_mode & 0o777 for file in drafter.folder.iterdir()} == {0o600}
    listed = run.invoke(app, ["models", "list", "--output", "json"])
    assert '"fast"' in listed.output
    again = run.invoke(app, arguments)
    assert isinstance(again.exception, SpecchatError)
    assert "is called 'fast' already" in str(again.exception)


def test_a_source_that_is_nothing_is_refused(tmp_path):
    tiny_folder(tmp_path / "target")
    run = CliRunner()
    run.invoke(app, ["models", "add", "mine", "--target", str(tmp_path / "target")])
    result = run.invoke(app, ["models", "add", "fast", "--target", "mine", "--drafter", str(tmp_path / "nowhere")])
    assert isinstance(result.exception, SpecchatError)
    assert "is neither a folder nor a repository of the hub" in str(result.exception)
    assert not (own_drafters_dir() / "fast").exists()
