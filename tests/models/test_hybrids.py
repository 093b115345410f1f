"""Models with recurrent layers: gated delta nets, Mamba-2 and short convolutions, over trees and after rewinding."""

from __future__ import annotations

import json
from itertools import cycle

import pytest
import torch
from contracts.kit import keeps_the_draws, lossless_rules, plain_text, random_tree, reply
from contracts.model_checks import CLOSE, PREFIX, deepest
from contracts.models import RECURRENT, perturbed
from hybrid_networks import HYBRIDS, V, hybrid
from loading_kit import load, logits_of, refusal
from safetensors.torch import load_file, save_file
from tiny_models import TOKENS, write_tokenizer

from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters import DRAFTERS
from specchat.errors import ModelError
from specchat.models.backends.recurrent_cache import BORDERS, LayerSizes, RecurrentCache
from specchat.models.backends.transformers_model import ReferenceModel, refuse_other_states
from specchat.models.backends.transformers_network import recurrent_layers, refuse_unknown_states
from specchat.models.decoder.cache_rows import Rows
from specchat.models.weights.model_files import HYBRIDS as KNOWN
from specchat.trees import TREE_POLICIES


def says(model, text):
    """(V,) logits after a text."""
    model.prefill(text[:-1])
    logits = model.read(TokenTree(text[-1], V).freeze()).after(ROOT)
    model.keep(())
    return logits


def states(model):
    """Of every recurrent layer, its convolution's last inputs and its state after the text that is held."""
    cache = model.cache
    assert isinstance(cache, RecurrentCache)
    return {layer: (one.last, one.memory) for layer, one in cache._states.items()}


@pytest.mark.parametrize("family", HYBRIDS)
def test_each_architecture_says_over_a_tree_and_after_it_what_transformers_says(family):
    network, model = hybrid(family), ReferenceModel(hybrid(family), 512)
    assert family in KNOWN
    refuse_unknown_states(family, network)
    refuse_other_states(family, model)
    tree, stepwise = random_tree(V, 14, 3), model.with_new_cache()
    text = [(11 * i + i // 7) % V for i in range(290)]  # more than one chunk
    model.prefill(text)
    stepwise.prefill(text)
    whole = model.read(tree)
    for depth in range(max(tree.depths) + 1):
        level = [node for node in range(len(tree)) if tree.depths[node] == depth]
        part = stepwise.read(tree, level)
        for node in level:
            torch.testing.assert_close(part.after(node), whole.after(node), **CLOSE)
    path = deepest(tree)
    for node in (ROOT, *path[-2:]):
        torch.testing.assert_close(
            whole.after(node), model.itself([*text, tree.tokens[ROOT], *tree.path_tokens(node)]), **CLOSE
        )
    model.keep(path)
    text += [tree.tokens[ROOT], *tree.path_tokens(path[-1])]
    torch.testing.assert_close(says(model, [*text, 9]), model.itself([*text, 9]), **CLOSE)


@pytest.mark.parametrize("family", ["qwen3_next", "granitemoehybrid"])
def test_the_states_after_an_accepted_path_are_those_of_plain_decoding(family):
    model = ReferenceModel(hybrid(family), 512)
    plain = model.with_new_cache()
    tree = random_tree(V, 20, 5)
    path = deepest(tree)
    model.prefill(PREFIX)
    model.read(tree)
    model.keep(path)
    plain.prefill(PREFIX)
    for node in (ROOT, *path):
        says(plain, [*plain.rows.prefix, *plain.rows._missing, tree.tokens[node]])
    assert model.rows.prefix == plain.rows.prefix
    for layer, (last, memory) in states(plain).items():
        torch.testing.assert_close(states(model)[layer][0], last, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(states(model)[layer][1], memory, atol=1e-5, rtol=1e-5)


def recurrence(q, k, v, decay, beta):
    """(n, heads, values), (heads, keys, values) outputs and state of a text, token by token."""
    state, out = torch.zeros(q.shape[1], q.shape[2], v.shape[2]), []
    for t in range(len(q)):
        state = state * decay[t].exp()[:, None, None]
        added = v[t] if beta is None else beta[t][:, None] * (v[t] - torch.einsum("hd,hde->he", k[t], state))
        state = state + k[t][..., None] * added[:, None]
        out.append(torch.einsum("hd,hde->he", q[t], state))
    return torch.stack(out), state


@pytest.mark.parametrize("delta", [False, True], ids=["Mamba-2", "delta"])
def test_a_scan_of_a_tree_is_the_recurrence_along_each_path(delta):
    generator = torch.Generator().manual_seed(1)
    tree, heads, keys, values = random_tree(V, 24, 8), 3, 6, 5
    text, nodes = 30, len(tree)
    rows = [torch.randn(text + nodes, heads, size, generator=generator) for size in (keys, keys, values)]
    q, k, v = rows[0], torch.nn.functional.normalize(rows[1], dim=-1), rows[2]
    decay = -3 * torch.rand(text + nodes, heads, generator=generator)
    beta = torch.rand(text + nodes, heads, generator=generator) if delta else None
    sizes = LayerSizes(4, 3, heads, keys, values, 4)
    cache, book = RecurrentCache((), {0: sizes}, 256), Rows()

    def scan(plan, first):
        cache.begin(plan)
        some = slice(first, first + plan.rows)
        cache._convolve(0, torch.zeros(1, 4, plan.rows), torch.zeros(4, 3), None, None)
        return cache._scan(0, q[some], k[some], v[some], decay[some], None if beta is None else beta[some])

    scan(book.plan_prefix(list(range(text))), 0)
    cache.text_read(text)
    book.prefix_read(list(range(text)))
    plan = book.plan_tree(tree, None, ())
    out = scan(plan, text)
    for node in range(nodes):
        path = [*range(text), *(text + each for each in (ROOT, *tree.path(node)))]
        on_path = [of if of is None else of[path] for of in (q, k, v, decay, beta)]
        expected, state = recurrence(*on_path)
        torch.testing.assert_close(out[node], expected[-1], atol=1e-5, rtol=1e-5)
        after = cache._after([ROOT, *tree.path(node)])[0].memory
        torch.testing.assert_close(after, state, atol=1e-5, rtol=1e-5)


def test_an_edit_goes_on_from_the_last_end_of_a_prompt_before_it():
    model = ReferenceModel(hybrid("qwen3_next"), 512)
    turns = [[(7 * i + turn) % V for i in range(20)] for turn in range(3)]
    text: list[int] = []
    for turn in turns:
        text += turn
        says(model, [*text, 3])
        text += [3]
    borders = [20, 41, 62]
    for edited, border in ((text[:50], 41), (text[:41], 41), (text[:40], 20), (text[:5], 0)):
        other = [*edited, *[(5 * i) % V for i in range(20)]]
        assert model.cached(other) == border
        before = model.counters.rows
        torch.testing.assert_close(says(model, other), model.itself(other), **CLOSE)
        assert model.counters.rows == before + len(other) - border
        says(model, [*text[:20], 1, 2])  # and back, from a border that is left
        for turn in borders:
            says(model, [*text[:turn], 3])


def test_states_are_kept_at_so_many_borders_and_counted():
    model = ReferenceModel(hybrid("granitemoehybrid"), 4096)
    cache, text = model.cache, []
    assert isinstance(cache, RecurrentCache)
    of_one = sum(sizes.state_bytes for sizes in recurrent_layers(hybrid("granitemoehybrid")).values())
    for turn in range(BORDERS + 3):
        text = [*text, *[(turn + 3 * i) % V for i in range(12)]]
        model.prefill(text)
    kept = {id(one): one for states_ in (*cache._borders.values(), cache._states) for one in states_.values()}
    held = sum(one.last.nbytes + one.memory.nbytes for one in kept.values())
    assert len(cache._borders) == BORDERS
    assert held == BORDERS * of_one
    attention = 2 * model.cache.capacity * 2 * 8 * 4  # keys and values of one layer, two heads of 8
    assert model.cache_bytes(10) == attention + (BORDERS + 1) * of_one
    assert model.pass_bytes(9, 10) > model.pass_bytes(8, 10) + sum(
        sizes.row_bytes for sizes in cache.recurrent.values()
    )


def test_a_view_may_leave_out_recurrent_layers_and_takes_over_states():
    model = ReferenceModel(hybrid("qwen3_next"), 512)
    model.prefill([*PREFIX, 8])
    says(model, [*PREFIX, 8, 9])
    view, text = model.view(skip_attention=(2,)), [*PREFIX, 8, 9]
    direct = model.view(skip_attention=(2,))
    view.copy_rows_from(text, range(len(text)))
    assert view.cached(text) == len(text)
    assert set(states(view)) == {0}
    assert states(view)[0][1] is states(model)[0][1], "states are shared until they change"
    torch.testing.assert_close(
        says(view, [*text, 4]), says(direct, [*text, 4]), **CLOSE
    )  # layers 0 and 1 are fed the same
    with pytest.raises(ModelError, match="no 'mlp'"):
        ReferenceModel(hybrid("zamba2"), 64).view(skip_mlp=(0,))


def test_states_of_another_kind_are_refused_in_one_line():
    import transformers

    shape = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = transformers.AutoConfig.for_model(
        "jamba", **shape, num_attention_heads=4, num_key_value_heads=2, mamba_d_state=8
    )
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelError, match=r"kind \(JambaMambaMixer\) that cannot be rewound") as error:
        refuse_unknown_states("m", network)
    assert "\n" not in str(error.value)


def test_a_network_that_says_something_else_over_a_tree_is_refused(monkeypatch):
    model = ReferenceModel(hybrid("bamba"), 64)
    scan = RecurrentCache._scan
    monkeypatch.setattr(RecurrentCache, "_scan", lambda *arguments: 2 * scan(*arguments))
    with pytest.raises(ModelError, match="differ from its own by"):
        refuse_other_states("m", model)


HISTORY = [3, 5, 7, 3, 5, 9, 3, 5, 11, 20, 4]
SMALL = {"controller": "fixed", "nodes": 6, "depth": 3, "width": 2, "max_tokens": 12}


def test_no_drafter_policy_or_rule_changes_the_text():
    policies, rules, families = cycle(TREE_POLICIES), cycle(lossless_rules()), cycle(RECURRENT)
    drafts = {family: perturbed(hybrid(family), 0.1) for family in RECURRENT}
    expected, accepted = {}, 0
    for name, policy, rule, family in zip(DRAFTERS, policies, rules, families, strict=False):
        if name == "mtp":  # its adapters are trained for attention in every layer
            continue
        heat = 0.8 if keeps_the_draws(rule.values[0]) else 0.0
        target = ReferenceModel(hybrid(family), 256)
        if (family, heat) not in expected:
            expected[family, heat] = plain_text(target.with_new_cache(), 12, Sampling(temperature=heat), prompt=HISTORY)
        how = {"drafter": name, "policy": policy, "rule": rule.id, "temperature": heat, "controller": "fixed"}
        said = reply(
            target, ReferenceModel(drafts[family], 256), HISTORY, nodes=6, depth=3, width=2, max_tokens=12, **how
        )
        assert said.tokens == expected[family, heat], (family, how)
        accepted += said.ledger.accepted
    assert accepted >= 20


def test_a_trained_adapter_is_refused_where_a_layer_has_no_attention():
    with pytest.raises(ModelError, match="adds to 'q' of layer 0, which this network does not have"):
        reply(ReferenceModel(hybrid("qwen3_next"), 256), prompt=HISTORY, drafter="mtp", max_tokens=4)


# ------------------------------------------------------------------------------------------------ files


def saved(folder, family):
    """A folder with the architecture's tiny network and a tokenizer."""
    network = hybrid(family, vocab_size=len(TOKENS))
    network.save_pretrained(folder)
    write_tokenizer(folder)
    return folder, network


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_text", "granitemoehybrid"])
def test_a_folder_answers_and_says_what_it_cannot(family, tmp_path):
    folder, network = saved(tmp_path, family)
    loaded = load(folder, wanted="float32")
    with torch.no_grad():
        expected = network(torch.tensor([[5, 6, 7, 8]])).logits[0, -1:]
    torch.testing.assert_close(logits_of(loaded), expected, **CLOSE)
    assert loaded.kernels == "transformers"
    assert any("keeps recurrent states" in note for note in loaded.notes)
    assert "int4" in refusal(folder, wanted="int4")


def test_the_text_half_of_a_model_that_sees_is_read(tmp_path):
    folder, network = saved(tmp_path, "qwen3_5_text")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name.replace("model.", "model.language_model.", 1): weight for name, weight in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    inner = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    outer = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": inner}
    (folder / "config.json").write_text(json.dumps(outer), encoding="utf-8")
    loaded = load(folder, wanted="float32")
    with torch.no_grad():
        expected = network(torch.tensor([[5, 6, 7, 8]])).logits[0, -1:]
    torch.testing.assert_close(logits_of(loaded), expected, **CLOSE)


def test_half_precision_keeps_its_states_in_float32(tmp_path):
    folder, _ = saved(tmp_path, "qwen3_next")
    loaded = load(folder, wanted="bfloat16")
    logits_of(loaded)
    loaded.model.keep(())
    last, memory = states(loaded.model)[0]
    assert (last.dtype, memory.dtype) == (torch.bfloat16, torch.float32)
    assert recurrent_layers(loaded.model._whole)[0].element == 2
