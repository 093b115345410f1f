"""Products and heads of small networks in C: torch's, within what 8 bits round, and refused where sizes disagree."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from contracts.models import V, shared_network
from contracts.tiny_networks import tiny_trained

from specchat.compiled.build import NativeUnavailable
from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.errors import ModelError
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.cpu_kernels.hydra import NamedHead, NativeHydra, TokenRows
from specchat.models.cpu_kernels.linear import EmbeddedProduct, NativeHead, NativeLinear, small_network_kernels
from specchat.models.cpu_kernels.logits_buffer import BEST
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.cpu_kernels.packing import Arena, RowReader
from specchat.models.cpu_kernels.selector import NativeSelector
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads import drafting as text_inputs
from specchat.models.draft_heads import methods
from specchat.models.draft_heads.head import SharedWeights, rms_normalize
from specchat.models.draft_heads.hydra import HydraDrafting, NativeSteps
from specchat.models.draft_heads.loading import load_network
from specchat.models.weights.weight_source import StoredRows, TensorSource
from specchat.training.learning_network import LearningNetwork
from specchat.training.limits import FORMS

TEXT = [3, 5, 9, 5, 3, 7, 9, 2, 5, 3, 11, 4]


@pytest.fixture
def kernels():
    try:
        return small_network_kernels()
    except NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("inputs", "out"), [(64, 48), (70, 17), (576, 100)])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_a_product_is_torchs_within_8_bits(kernels, inputs, out, rows):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(out, inputs, generator=generator)
    x = torch.randn(rows, inputs, generator=generator)
    exact = x @ weight.t()
    got = NativeLinear(kernels, weight, Arena())(x)
    assert (got - exact).abs().max() < 0.05 * exact.std()
    assert (got - exact).abs().max() > 0, "nothing was rounded, so this is another product"


def test_a_product_with_embeddings_is_the_one_with_normed_rows(kernels):
    generator = torch.Generator().manual_seed(5)
    table = 3 * torch.randn(30, 64, generator=generator)
    linear = NativeLinear(kernels, torch.randn(48, 64, generator=generator), Arena())
    stored = StoredRows.of_tensor(table)
    assert stored is not None
    product = EmbeddedProduct(linear, RowReader(kernels, stored), 1e-5)
    for tokens in ([7], [3, 29, 3, 0], list(range(30)) * 3):
        rows = torch.empty(len(tokens), 48)
        product.write(tokens, rows)
        assert torch.allclose(rows, linear(rms_normalize(table[tokens], 1e-5)), rtol=0.02, atol=0.05)
        alone = torch.empty(1, 48)
        product.write(tokens[-1:], alone)
        assert torch.equal(rows[-1:], alone)


@pytest.mark.parametrize(
    ("tokens", "rows", "says"),
    [([30], torch.empty(1, 48), "30"), ([1, 2], torch.empty(1, 48), r"\(1, 48\)"), ([1], torch.empty(48, 1), "48, 1")],
)
def test_rows_that_are_not_there_or_do_not_fit_are_refused(kernels, tokens, rows, says):
    stored = StoredRows.of_tensor(torch.randn(30, 64))
    assert stored is not None
    linear = NativeLinear(kernels, torch.randn(48, 64), Arena())
    with pytest.raises(ModelError, match=says):
        EmbeddedProduct(linear, RowReader(kernels, stored), 1e-5).write(tokens, rows)


def test_embeddings_of_another_width_are_refused(kernels):
    stored = StoredRows.of_tensor(torch.randn(30, 32))
    assert stored is not None
    linear = NativeLinear(kernels, torch.randn(48, 64), Arena())
    with pytest.raises(ModelError, match="rows of 32 numbers, not 64"):
        EmbeddedProduct(linear, RowReader(kernels, stored), 1e-5).write([1], torch.empty(1, 48))


def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(kernels):
    product = NativeLinear(kernels, torch.randn(40, 64), Arena())
    x = torch.randn(9, 64)
    assert torch.equal(product(x)[4], product(x[4:5])[0])
    assert torch.equal(product(x.view(3, 3, 64)).view(9, 40), product(x))
    assert product(x[:0]).shape == (0, 40)


@pytest.mark.parametrize("inputs", [64, 70])
def test_every_number_of_rows_gives_a_row_its_bits(kernels, inputs):
    product = NativeLinear(kernels, torch.randn(40, inputs), Arena())
    x = torch.randn(29, inputs)
    alone = torch.cat([product(row[None]) for row in x])
    for rows in range(1, 30):
        assert torch.equal(product(x[:rows]), alone[:rows]), rows


def test_a_head_grows_and_says_what_torch_would_say(kernels):
    norm, rows = torch.rand(64) + 0.5, torch.randn(83, 64)
    head = NativeHead(kernels, norm, 1e-5)
    for start, end in ((0, 5), (5, 6), (6, 40), (40, 83)):
        head.append(rows[start:end])
        states = torch.randn(3, 64) * 3
        exact = torch.nn.functional.rms_norm(states, (64,), norm, 1e-5) @ rows[:end].t()
        said = head.scores(states)
        logits, best, logsumexp = said.logits, said.likeliest, said.logsumexp
        assert torch.equal(said.highest, logits.gather(1, best.long()))
        assert logits.shape == (3, end)
        assert (logits - exact).abs().max() < 0.05 * exact.std()
        torch.testing.assert_close(logsumexp, logits.logsumexp(-1))
        assert torch.equal(best.long(), logits.argsort(-1, descending=True)[:, : best.shape[1]])


def test_a_head_grown_row_by_row_has_the_same_bits_as_one_made_at_once(kernels):
    rows, states = torch.randn(37, 64), torch.randn(2, 64)
    one, other = (NativeHead(kernels, torch.ones(64), 1e-5) for _ in range(2))
    one.append(rows)
    for row in rows:
        other.append(row[None])
    assert torch.equal(one.scores(states).logits, other.scores(states).logits)


def test_sizes_that_do_not_agree_are_refused(kernels):
    product = NativeLinear(kernels, torch.randn(40, 64), Arena())
    wrong = product.product.as_c()
    wrong.out = 60
    with pytest.raises(ModelError, match="bytes"):
        kernels.check("linear_check", wrong)
    with pytest.raises(ModelError, match="states"):
        product(torch.randn(3, 65)[:, :64].new_zeros(2, 63))
    head = NativeHead(kernels, torch.ones(64), 1e-5)
    head.append(torch.randn(20, 64))
    head.as_c.vocab_size = 40
    with pytest.raises(ModelError, match="head"):
        kernels.check("head_alone_check", head.as_c)


def computed_in_c(learning):
    drafting = learning._drafting
    if isinstance(drafting, HydraDrafting):
        return isinstance(drafting._steps, NativeSteps)
    network = learning._drafting.given.text._fuse.__self__
    products = [part for part in network.modules() if isinstance(part, NativeLinear | torch.nn.Linear)]
    in_c = {isinstance(part, NativeLinear) for part in products}
    assert len(in_c) == 1, "all or none"
    return in_c.pop()


@pytest.mark.parametrize("most_waiting_tokens", [256, 0])
@pytest.mark.parametrize("method", [*methods("head"), *FORMS[1:]])
def test_drafting_through_c_is_drafting_through_torch_within_8_bits(kernels, monkeypatch, method, most_waiting_tokens):
    monkeypatch.setattr(text_inputs, "_MOST_WAITING_TOKENS", most_waiting_tokens)
    network = shared_network("llama")
    native = Decoder(NativeNetwork(Shape.of(network.config), TensorSource(network.state_dict()), "int8"), 64)
    exact = ReferenceModel(network, 64)
    trained = tiny_trained(method, exact)
    through_c, through_torch = (LearningNetwork(target, trained, 4096) for target in (native, exact))
    assert computed_in_c(through_c)
    assert not computed_in_c(through_torch)
    states: list[TextStates] = []
    exact.prefill(TEXT[:-1], tap=HiddenStateSink(through_c.layers, states.append))
    said = []
    for drafting in (through_c, through_torch):
        for some in states:
            drafting.take(some)
        assert drafting.begin(TEXT)
        tree = TokenTree(TEXT[-1], exact.vocab_size)
        levels = [drafting.read(tree, [ROOT])]
        levels.append(drafting.read(tree, [tree.add(ROOT, Guess(token)) for token in (5, 9)]))
        levels.append(drafting.read(tree, [tree.add(2, Guess(token)) for token in (3, 7, 11)]))
        said.append(levels)
    for one, other in zip(*said, strict=True):
        assert one.possible.tolist() == other.possible.tolist()
        assert (one.logits - other.logits).abs().max() < 0.1 * other.logits.std()
        assert (one.logits - other.logits).abs().max() > 0


def in_c(kernels, method, products, norm=None):
    """A network with these products in C, and its head."""
    target = ReferenceModel(shared_network("llama"), 64)
    trained = tiny_trained(method, target)
    network = load_network(method, trained.options, trained.weights, lambda tokens: SharedWeights.of(target, tokens))
    if norm is not None:
        network.mlp_norm.fill_(norm)
    for name in products:
        setattr(network, name, NativeLinear(kernels, getattr(network, name).weight, Arena()))
    head = NativeHead(kernels, network.norm, 1e-5)
    head.append(network.shared.head)
    return network, NamedHead(head, network.shared.tokens)


def a_native_hydra(kernels, norm=None):
    network, head = in_c(kernels, "hydra", ("fuse", "back", "gate_up", "down"), norm)
    return NativeHydra(kernels, 1, network), head


def a_native_selector(kernels, candidates=8):
    network, head = in_c(kernels, "selector", ("fuse", "gate_up", "down", "blocks", "gates"))
    return NativeSelector(kernels, 1, network, candidates), head


def begun_selector(kernels):
    """A tree of a selector that scores eight candidates, below token 3; with its table of pairs."""
    selector, head = a_native_selector(kernels)
    pairs = TokenRows(torch.randn(V, 2 * RANK), np.arange(V, dtype=np.int32)[::-1].copy())
    selector.begin(head, torch.randn(2, 32), token_table(V), pairs)
    return selector, pairs


def token_table(tokens):
    return TokenRows(torch.randn(tokens, 32), np.arange(tokens, dtype=np.int32))


def test_the_factors_of_the_norm_count_in_hydras_c(kernels):
    """Its MLP adds little, so that 8 bits alone would hide a norm that is left out."""
    features, tokens, said = torch.randn(2, 32), token_table(20), []
    for norm in (None, 1.0):
        hydra, head = a_native_hydra(kernels, norm)
        hydra.first(head, features, tokens, 3, None)
        said.append(hydra.said(head, [0]).logits.clone())
    assert not torch.equal(*said)


def test_a_level_has_the_same_bits_alone_and_beside_others(kernels):
    hydra, head = a_native_hydra(kernels)
    features, tokens = torch.randn(2, 32), token_table(20)

    def read(level):
        hydra.first(head, features, tokens, 3, None)
        hydra.after(head, tokens, [0] * len(level), level)
        return [hydra.said(head, [0]).logits.clone(), hydra.said(head, range(1, 1 + len(level))).logits.clone()]

    together, alone = read(range(11)), read([7])
    assert torch.equal(together[0], alone[0])
    assert torch.equal(together[1][7], alone[1][0])


def test_states_that_lie_apart_are_read_as_they_lie(kernels):
    hydra, head = a_native_hydra(kernels)
    tapped, tokens = torch.randn(2, 5, 32), token_table(20)
    hydra.first(head, tapped[:, 3], tokens, 3, None)
    said = hydra.said(head, [0]).logits.clone()
    hydra.first(head, tapped[:, 3].contiguous(), tokens, 3, None)
    assert torch.equal(said, hydra.said(head, [0]).logits)


def test_a_step_that_follows_or_takes_what_is_not_there_is_refused(kernels):
    hydra, head = a_native_hydra(kernels)
    features, tokens = torch.randn(2, 32), token_table(5)
    with pytest.raises(ModelError, match="a row's parent is 0"):
        hydra.after(head, tokens, [0], [1])
    with pytest.raises(ModelError, match="a row's token is 5, not 0 to 4"):
        hydra.first(head, features, tokens, 5, None)
    tokens.places[4] = 5
    with pytest.raises(ModelError, match="a token's row is 5, not 0 to 4"):
        hydra.first(head, features, tokens, 4, None)
    with pytest.raises(ModelError, match="states"):
        hydra.first(head, torch.randn(3, 32), tokens, 0, None)
    hydra._c.back.out = 16
    with pytest.raises(ModelError, match="back: 32 inputs and 16 outputs, not 32 and 32"):
        kernels.check("hydra_check", hydra._c)


RANK = 8


def test_c_adds_the_score_of_a_pair_to_each_candidates_logit(kernels):
    """Of the token behind which it stands, of those before it and of the state; other tokens keep what they had."""
    selector, pairs = begun_selector(kernels)
    root = selector.read([-1], [3])
    level = selector.read([0, 0], [5, 9])
    below = selector.read([1, 2], [9, 5])
    assert root.tokens[0].tolist() == root.logits[0].argsort(descending=True, stable=True)[:8].tolist()
    rows = pairs.rows[pairs.places.tolist()]
    first, second = rows[:, :RANK], rows[:, RANK:]
    alone = selector._room.logits[: 3 * len(level.possible)].view(3, -1)
    before = torch.zeros(2, RANK)
    for depth, said, tokens in ((1, level, [5, 9]), (2, below, [9, 5])):
        before = F.silu(selector._gates[depth] + first[tokens] + before @ selector._mix.T)
        candidates = alone[depth].argsort(descending=True, stable=True)[:8]
        for row in range(2):
            expected = alone[depth].clone()
            expected[candidates] += second[candidates] @ before[row]
            order = candidates[expected[candidates].argsort(descending=True, stable=True)]
            assert said.tokens[row].tolist() == order.tolist()
            assert order.tolist() != candidates.tolist(), "scores change the order, or this shows nothing"
            torch.testing.assert_close(said.logits[row], expected, rtol=1e-5, atol=1e-5)
            logprobs = torch.from_numpy(said.logprobs[row])
            torch.testing.assert_close(logprobs, expected.log_softmax(0)[order], rtol=1e-5, atol=1e-5)


def test_a_selectors_rows_have_the_same_bits_alone_and_beside_others(kernels):
    selector, _ = begun_selector(kernels)
    selector.read([-1], [3])
    together, alone = selector.read([0] * 4, [5, 9, 7, 2]), selector.read([0], [7])
    assert np.array_equal(together.logprobs[2], alone.logprobs[0])
    assert together.tokens[2].tolist() == alone.tokens[0].tolist()


def test_more_of_a_selectors_rows_than_there_was_room_for_keep_their_depths(kernels):
    selector, _ = begun_selector(kernels)
    selector.read([-1], [3])
    said = [selector.read([0], [5]), *(selector.read([0] * 700, [5] * 700) for _ in range(3)), selector.read([0], [5])]
    below = selector.read([1, 2101], [9, 9])
    assert all(np.array_equal(some.logprobs[0], said[0].logprobs[0]) for some in said)
    assert np.array_equal(*below.logprobs)
    assert not np.array_equal(below.logprobs[0], selector.read([0], [9]).logprobs[0])


def test_a_selectors_rows_that_cannot_be_are_refused(kernels):
    selector, pairs = begun_selector(kernels)
    for behind, wrong in (([0], "a row's parent is 0, not -1 to -1"), ([-2], "a row's parent")):
        with pytest.raises(ModelError, match=wrong):
            selector.read(behind, [3])
    selector.read([-1], [3])
    for behind, token, wrong in (
        (1, 3, "a row's parent is 1, not 0 to 0"),
        (0, V, f"a row's token is {V}, not 0 to {V - 1}"),
        (0, -1, "a row's token is -1"),
    ):
        with pytest.raises(ModelError, match=wrong):
            selector.read([behind], [token])
    pairs.places[5] = V
    with pytest.raises(ModelError, match=f"a token's row of pairs is {V} of {V}"):
        selector.read([0], [5])
    with pytest.raises(ModelError, match="states"):
        selector.begin(selector._given[0], torch.randn(3, 32), *selector._given[1:])
    selector._c.blocks.out = 16
    with pytest.raises(ModelError, match="blocks: 32 inputs and 16 outputs, not 32 and 96"):
        kernels.check("selector_check", selector._c)


_READ_ROWS = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    *(ctypes.c_void_p, ctypes.c_int32),
    *(ctypes.c_void_p,) * 2,
    *(ctypes.c_int32,),
    *(ctypes.c_void_p,) * 3,
)
_DONE, _REFUSED, _MISSING_INPUT, _NO_ROOM = 0, 2, 3, 4


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        ([(-1, 3)], _DONE),
        ([(-1, -2)], _REFUSED),
        ([(-1, 2**31 - 1)], _REFUSED),
        ([(-1, 5)], _MISSING_INPUT),
        ([], _REFUSED),
        ([(-1, 3)] * 9, _NO_ROOM),
    ],
)
def test_compiled_code_that_asks_for_rows_that_cannot_be_is_refused(kernels, asked, outcome):
    hydra, head = a_native_hydra(kernels)
    assert outcome_of(hydra.compiled(head, torch.randn(2, 32), token_table(5), 8), asked)[0] == outcome


def outcome_of(network, asked):
    """What compiled code is answered that asks for these rows, and the first token that it is told."""
    behind, wanted = (
        np.array(column, np.int32) for column in ([row for row, _ in asked], [token for _, token in asked])
    )
    said, logprobs = (np.zeros((9, BEST), dtype) for dtype in (np.int32, np.float32))
    logsumexp = np.zeros(9, np.float32)
    with network.turn:
        answer = _READ_ROWS(network.read)(
            *(network.network, len(asked), behind.ctypes.data, wanted.ctypes.data, 3),
            *(said.ctypes.data, logprobs.ctypes.data, logsumexp.ctypes.data),
        )
    return answer, int(said[0, 0])


def test_a_selector_names_the_token_whose_inputs_it_lacks(kernels):
    """The root's; that of a guess; and that of a candidate."""
    selector, head = a_native_selector(kernels)
    inputs, pairs = token_table(V), TokenRows(torch.randn(V, 2 * RANK), np.arange(V, dtype=np.int32))
    network = selector.begin(head, torch.randn(2, 32), inputs, pairs)
    inputs.places[4] = -1
    assert outcome_of(network, [(-1, 4)]) == (_MISSING_INPUT, 4)
    assert outcome_of(network, [(-1, 3)])[0] == _DONE
    pairs.places[5] = -1
    assert outcome_of(network, [(0, 5)]) == (_MISSING_INPUT, 5)
    pairs.places[5] = 5
    candidate = int(selector.read([0], [5]).tokens[0, 0])
    pairs.places[candidate] = -1
    assert outcome_of(network, [(0, next(token for token in (5, 6) if token != candidate))]) == (
        _MISSING_INPUT, candidate,
    )  # fmt: skip


def test_more_rows_than_there_was_room_for_keep_what_was_said(kernels):
    hydra, head = a_native_hydra(kernels)
    tokens = token_table(20)
    hydra.first(head, torch.randn(2, 32), tokens, 3, None)
    said = hydra.said(head, [0])
    before = said.logits.clone(), said.tokens.copy(), said.logprobs.copy()
    hydra.after(head, tokens, [0] * 300, [index % 20 for index in range(300)])
    after = hydra.said(head, [0])
    assert torch.equal(after.logits, before[0])
    assert np.array_equal(after.tokens, before[1])
    assert np.array_equal(after.logprobs, before[2])


def test_a_network_for_a_target_of_other_sizes_is_refused():
    target = ReferenceModel(shared_network("llama"), 64)
    trained = tiny_trained("hydra", target)
    wrong = dataclasses.replace(trained, options={**trained.options, "taps": [0, 3]})
    with pytest.raises(ModelError, match="after layers up to 3; the target has 32 and 3 layers"):
        LearningNetwork(target, wrong, 4096)
