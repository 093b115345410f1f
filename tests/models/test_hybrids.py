"""Models with recurrent layers: gated delta nets, Mamba-2 and short convolutions, over trees and after rewinding."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from contracts.kit import collect, converse, keeps_the_draws, lossless_rules, plain_text, random_tree, reply
from contracts.model_checks import CLOSE, PREFIX, deepest
from contracts.models import RECURRENT, perturbed
from hybrid_networks import HYBRIDS, V, hybrid
from loading_kit import load, logits_of, refusal
from native_kit import needs_native
from safetensors.torch import load_file, save_file
from tiny_models import TOKENS, write_tokenizer
from transformers.activations import ACT2FN
from transformers.modeling_layers import MtpLayer

from specchat.core.request import PassRequest
from specchat.core.sampling import Sampling
from specchat.core.states import HiddenStateSink
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import PairResources
from specchat.errors import CombinationError, ModelError
from specchat.models.backends.recurrent_cache import BORDERS, LayerSizes, RecurrentCache, compiled_recurrence
from specchat.models.backends.transformers_model import ReferenceModel, refuse_other_states
from specchat.models.backends.transformers_network import recurrent_layers, refuse_unknown_states
from specchat.models.cpu_kernels.recurrence import MOST_KERNEL, ScanInputs
from specchat.models.decoder.cache_rows import Rows
from specchat.models.shipped_mtp import MtpModules
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


FORMS = pytest.mark.parametrize("form", [pytest.param("C", marks=needs_native), "torch"])
"""What computes the recurrence over trees."""


def model_of(network, form, tokens=512):
    model = ReferenceModel(network, tokens, recurrence_in_c=form == "C")
    assert (model.cache.compiled is not None) == (form == "C")
    return model


@FORMS
@pytest.mark.parametrize("family", HYBRIDS)
def test_each_architecture_says_over_a_tree_and_after_it_what_transformers_says(family, form):
    network, model = hybrid(family), model_of(hybrid(family), form)
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


@FORMS
@pytest.mark.parametrize("family", ["qwen3_next", "granitemoehybrid"])
def test_the_states_after_an_accepted_path_are_those_of_plain_decoding(family, form):
    model = model_of(hybrid(family), form)
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


def cache_of(sizes, form):
    """A cache of one recurrent layer."""
    return RecurrentCache(
        (), {0: sizes}, 256, compiled=compiled_recurrence([sizes], torch.empty(0)) if form == "C" else None
    )


@FORMS
@pytest.mark.parametrize("sizes", [(3, 3, 6, 5), (4, 2, 40, 33), (2, 1, 128, 64)], ids=str)
@pytest.mark.parametrize("delta", [False, True], ids=["Mamba-2", "delta"])
def test_a_scan_of_a_tree_is_the_recurrence_along_each_path(delta, sizes, form):
    generator = torch.Generator().manual_seed(1)
    tree, (heads, key_heads, keys, values) = random_tree(V, 24, 8), sizes
    text, nodes, count = 30, len(tree), 30 + len(tree)
    q, k, x = (torch.randn(count, *of, generator=generator) for of in ((key_heads, keys),) * 2 + ((heads, values),))
    k = torch.nn.functional.normalize(k, dim=-1)
    decay = -3 * torch.rand(count, heads, generator=generator)
    rate = torch.rand(count, heads, generator=generator)
    cache, book = cache_of(LayerSizes(4, 3, heads, keys, values, 4), form), Rows()

    def scan(plan, first):
        cache.begin(plan)
        some = slice(first, first + plan.rows)
        cache._convolve(0, torch.zeros(1, 4, plan.rows), torch.zeros(4, 3), None, None)
        return cache._scan(0, ScanInputs(*(of[some] for of in (q, k, x, decay, rate)), delta))

    scan(book.plan_prefix(list(range(text))), 0)
    cache.text_read(text)
    book.prefix_read(list(range(text)))
    plan = book.plan_tree(tree, None, ())
    out = scan(plan, text)
    each = (of.repeat_interleave(heads // key_heads, dim=1) for of in (q, k))
    told = (*each, x, decay, rate) if delta else (*each, rate[..., None] * x, decay, None)
    for node in range(nodes):
        path = [*range(text), *(text + each for each in (ROOT, *tree.path(node)))]
        expected, state = recurrence(*(of if of is None else of[path] for of in told))
        torch.testing.assert_close(out[node], expected[-1], atol=1e-5, rtol=1e-5)
        after = cache._after([ROOT, *tree.path(node)])[0].memory
        torch.testing.assert_close(after, state, atol=1e-5, rtol=1e-5)


@FORMS
@pytest.mark.parametrize(
    ("channels", "kernel", "activation"), [(5, 3, None), (67, 4, "silu"), (300, 2, "gelu"), (33, 1, None)]
)
def test_a_convolution_of_a_tree_is_that_of_each_path(channels, kernel, activation, form):
    generator = torch.Generator().manual_seed(2)
    tree, text = random_tree(V, 20, 9), 12
    inputs = torch.randn(channels, text + len(tree), generator=generator)
    weight, bias = torch.randn(channels, kernel, generator=generator), torch.randn(channels, generator=generator)
    cache, book = cache_of(LayerSizes(channels, kernel, 0, 0, 0, 4), form), Rows()

    def convolve(plan, columns):
        cache.begin(plan)
        return cache._convolve(0, inputs[None, :, columns], weight, bias, activation)[0]

    convolve(book.plan_prefix(list(range(text))), slice(text))
    cache.text_read(text)
    book.prefix_read(list(range(text)))
    for level in range(max(tree.depths) + 1):
        nodes = [node for node in range(len(tree)) if tree.depths[node] == level]
        plan = book.plan_tree(tree, nodes, ())
        out = convolve(plan, [text + node for node in nodes])
        book.tree_read(plan)
        for at, node in enumerate(nodes):
            path = [*range(text), *(text + each for each in (ROOT, *tree.path(node)))]
            padded = torch.nn.functional.pad(inputs[:, path], (kernel - 1, 0))
            expected = torch.nn.functional.conv1d(padded[None], weight[:, None], bias, groups=channels)[0, :, -1]
            expected = expected if activation is None else ACT2FN[activation](expected)
            torch.testing.assert_close(out[:, at], expected, atol=1e-5, rtol=1e-5)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["qwen3_next", "granitemoehybrid", "lfm2"])
def test_the_recurrence_in_c_writes_the_same_greedy_text(family, dtype):
    network = copy.deepcopy(hybrid(family)).to(dtype)
    said = [plain_text(model_of(network, form), 20, prompt=HISTORY) for form in ("C", "torch")]
    assert said[0] == said[1]


def test_the_recurrence_in_c_is_left_where_it_is_not_made_for():
    weights, sizes = torch.empty(0), LayerSizes(4, 3, 2, 2, 2, 4)
    assert compiled_recurrence([sizes], weights.half()) is None
    assert compiled_recurrence([sizes], torch.empty(0, device="meta")) is None
    assert compiled_recurrence([replace(sizes, kernel=MOST_KERNEL + 1)], weights) is None


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
    assert view.joint_weights is None
    assert model.joint_weights is None, "several requests are read one after another"
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
    monkeypatch.setattr(RecurrentCache, "_scan", lambda *arguments: scan(*arguments).flip(-1))
    with pytest.raises(ModelError, match="differ from its own by"):
        refuse_other_states("m", model)


HISTORY = [3, 5, 7, 3, 5, 9, 3, 5, 11, 20, 4]
SMALL = {"controller": "fixed", "nodes": 6, "depth": 3, "width": 2, "max_tokens": 12}


def test_no_drafter_policy_or_rule_changes_the_text():
    policies, rules, families = cycle(TREE_POLICIES), cycle(lossless_rules()), cycle(RECURRENT)
    drafts = {family: perturbed(hybrid(family), 0.1) for family in RECURRENT}
    expected, accepted = {}, 0
    for name, policy, rule, family in zip(DRAFTERS, policies, rules, families, strict=False):
        if name in ("mtp", "speculative_streaming"):  # their adapters want attention in all layers that they act on
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
    assert load(folder, "torch", "float32").model.cache.compiled is None
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
    assert recurrent_layers(loaded.model.network)[0].element == 2


# ------------------------------------------------------------------------------------- heads in the target's files


def with_mtp(folder, network, split_experts=True):
    """Add a random head to the files of a network; its tensors as transformers' layers have them."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        modules = MtpModules(network)
        for parameter in modules.parameters():
            parameter.data = 0.25 * torch.randn_like(parameter)
    tensors = {f"mtp.{name}": tensor.clone() for name, tensor in modules.state_dict().items()}
    if split_experts and (gate_up := tensors.pop("mtp.layers.0.mlp.experts.gate_up_proj", None)) is not None:
        down = tensors.pop("mtp.layers.0.mlp.experts.down_proj")
        for number, (both, one) in enumerate(zip(gate_up, down, strict=True)):
            gate, up = both.chunk(2)
            where = f"mtp.layers.0.mlp.experts.{number}"
            tensors |= {
                f"{where}.gate_proj.weight": gate.clone(),
                f"{where}.up_proj.weight": up.clone(),
                f"{where}.down_proj.weight": one.clone(),
            }
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})
    return modules


def said_by_transformers(network, modules, text, below):
    """(V,) logits for the token after a text and guesses below it, by transformers' own MTP layer, without a cache."""
    layer = network.get_decoder().layers[modules.number]
    other = MtpLayer(network.config, type(layer), type(layer.input_layernorm), modules.number).eval()
    names = {"pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "fc": "eh_proj", "norm": "post_norm"}
    state = {}
    for name, tensor in modules.state_dict().items():
        first, _, rest = name.partition(".")
        state[name.replace("layers.0.", "mtp_block.") if first == "layers" else f"{names[first]}.{rest}"] = tensor
    other.load_state_dict(state)
    decoder = network.get_decoder()
    with torch.no_grad():
        states = decoder(torch.tensor([text[:-1]]), use_cache=False).last_hidden_state
        tokens = list(text[1:])
        for guess in [*below, None]:
            count = len(tokens)
            places = torch.arange(count)[None]
            rotation = decoder.rotary_emb(states, position_ids=places)
            mask = torch.ones(1, 1, count, count, dtype=torch.bool).tril()
            embedded = network.get_input_embeddings()(torch.tensor([tokens]))
            out = other(embedded, states, rotation, mask, places, None)
            states, tokens = torch.cat([states, out[:, -1:]], dim=1), [*tokens, guess]
        return network.get_output_embeddings()(out[0, -1])


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_text"])
def test_the_head_of_the_files_says_what_transformers_own_layer_says(family, tmp_path):
    folder, network = saved(tmp_path, family)
    modules = with_mtp(folder, network)
    loaded = load(folder, wanted="float32")
    model = loaded.model
    before = model.cache_bytes(10)
    head = loaded.shipped()
    tree, text = random_tree(len(TOKENS), 9, 4, root=7), [5, 9, 3, 8, 20, 5, 9, 7]
    states = []
    model.prefill(text[:-1], tap=HiddenStateSink(head.layers, lambda of: states.append(of)))
    reading = model.read(TokenTree(text[-1], len(TOKENS)).freeze(), request=PassRequest(taps=head.layers))
    assert not states, "a short text is read with the tree"
    head.take(reading.text_states)
    assert head.begin(text)
    for depth in range(max(tree.depths) + 1):
        level = [node for node in range(len(tree)) if tree.depths[node] == depth]
        said = head.read(tree, level)
        for row, node in enumerate(level):
            expected = said_by_transformers(network, modules, text, tree.path_tokens(node))
            torch.testing.assert_close(said.logits[row], expected, **CLOSE)
            assert said.tokens[row, 0] == expected.argmax()
    assert model.cache_bytes(10) > before, "its rows are counted with the target's"
    assert loaded.weight_bytes > sum(weight.numel() * 4 for weight in network.parameters())


def test_a_head_of_the_files_drafts_and_the_text_stays(tmp_path):
    folder, network = saved(tmp_path, "qwen3_next")
    with_mtp(folder, network, split_experts=False)
    loaded = load(folder, wanted="float32")
    expected = plain_text(loaded.model.with_new_cache(), 12, prompt=HISTORY)
    resources = PairResources(shipped=loaded.shipped)
    how = {"drafter": "shipped_mtp", "policy": "best_first", **SMALL}
    said = collect(converse(loaded.model, resources=resources, **how).reply(HISTORY, 1))
    assert said.tokens == expected
    assert said.ledger.drafted > 12


def test_what_is_no_head_or_no_fitting_one_is_one_line(tmp_path):
    folder, _ = saved(tmp_path, "qwen3_next")
    loaded = load(folder, wanted="float32")
    assert loaded.shipped is None
    with pytest.raises(CombinationError, match="needs a head in the target's own files"):
        converse(loaded.model, resources=PairResources(), drafter="shipped_mtp")
    file = folder / "model.safetensors"
    save_file({**load_file(file), "mtp.fc.weight": torch.zeros(3, 4)}, file, {"format": "pt"})
    loaded = load(folder, wanted="float32")
    assert loaded.shipped is None
    assert any("tensors do not fit" in note for note in loaded.notes)
    other, _ = saved(tmp_path / "granite", "granitemoehybrid")
    file = other / "model.safetensors"
    save_file({**load_file(file), "mtp.fc.weight": torch.zeros(3, 4)}, file, {"format": "pt"})
    assert any("that of granitemoehybrid is not known here" in note for note in load(other, wanted="float32").notes)
