"""The trained networks: unrolled as they draft, saved and loaded with every tensor checked."""

from __future__ import annotations

import pytest
import torch
from contracts.models import shared_network
from contracts.random_networks import random_network
from contracts.tiny_networks import sizes_for
from rows import each_row
from safetensors.torch import load_file, save_file

from specchat.errors import ConfigError, ModelError, WeightsError
from specchat.models.backends.scripted import ScriptedModel, random_says
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.draft_heads import FAMILIES, methods
from specchat.models.draft_heads import loading as eight_bits
from specchat.models.draft_heads.eagle import EagleSizes
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import load_network, rounded, save_weights, unrounded
from tests.training.training_kit import unroll

D, R, TAPS, STEPS = 32, 20, (0, 2), 3
FORMS = ("fs", "fspad")
"""The other forms of `eagle`, which are tested like families of their own."""

SIZES = {method: sizes_for(method, D, TAPS[-1] + 1) for method in (*methods("head"), *FORMS)}
PARALLEL = {"medusa", "amphista", "parallel_spec"}


def family(method):
    return "eagle" if method in FORMS else method


def last_seen(method, step):
    """The last token that a guess depends on, counted from its place."""
    if method == "falcon":
        return 1 + (step - 1) // SIZES[method].block * SIZES[method].block
    return 1 if method in PARALLEL else step


def norm(tensors):
    """The name of the norm in front of the head."""
    return next(name for name in tensors if name.removeprefix("layer.") == "norm")


@pytest.fixture(params=[*methods("head"), *FORMS])
def method(request):
    return request.param


def shared():
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(61, D, generator=generator)
    return SharedWeights(lambda tokens: table[tokens], torch.arange(R) * 3, torch.randn(R, D, generator=generator))


def share(tokens):
    return shared() if torch.equal(tokens, shared().tokens) else pytest.fail("other tokens than were saved")


def made(method, seed=0):
    return random_network(family(method), SIZES[method], shared(), torch.Generator().manual_seed(seed))


def text(length=9, batch=2):
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 61, (batch, length), generator=generator)
    return torch.randn(batch, length, len(TAPS), D, generator=generator), tokens


def test_every_tensor_counts(method):
    """Norms too: in networks that begin to learn they are ones, so that one which is left out would not show."""
    features, tokens = text()
    network = made(method)
    before = unroll(network, features, tokens, STEPS)
    for name, parameter in network.named_parameters():
        with torch.no_grad():
            kept = parameter.clone()
            parameter.mul_(1.5)
            after = unroll(network, features, tokens, STEPS)
            parameter.copy_(kept)
        assert not all(torch.allclose(one, other) for one, other in zip(before, after, strict=True)), name


def test_there_are_logits_of_every_step_at_every_place(method):
    features, tokens = text()
    unrolled = unroll(made(method), features, tokens, STEPS)
    assert [logits.shape for logits in unrolled] == [(2, 9 - STEPS, R)] * STEPS


def test_a_step_sees_the_tokens_up_to_its_own_and_none_behind(method):
    """Step k at place t follows token t + k: changing token 5 changes what comes from t + k = 5 on, and no more. Where
    several steps are one, it is the first of them that counts."""
    features, tokens = text(batch=1)
    other = tokens.clone()
    other[0, 5] = (other[0, 5] + 1) % 61
    network = made(method)
    for step, (one, changed) in enumerate(
        zip(unroll(network, features, tokens, STEPS), unroll(network, features, other, STEPS), strict=True), 1
    ):
        for place in range(9 - STEPS):
            same = torch.equal(one[0, place], changed[0, place])
            assert same or place + last_seen(method, step) >= 5
            if 5 in (place + 1, place + last_seen(method, step)):
                assert not same, "the token that is followed is seen"


def test_a_step_sees_no_state_of_the_target_behind_its_place(method):
    features, tokens = text(batch=1)
    other = features.clone()
    other[0, 3] += 1
    network = made(method)
    for one, changed in zip(
        unroll(network, features, tokens, STEPS), unroll(network, other, tokens, STEPS), strict=True
    ):
        assert torch.equal(one[0, :3], changed[0, :3])
        assert not torch.equal(one[0, 3], changed[0, 3])


def test_one_more_step_changes_nothing_before_it(method):
    features, tokens = text()
    network = made(method)
    shorter, longer = unroll(network, features[:, :-1], tokens[:, :-1], 2), unroll(network, features, tokens, 3)
    for one, other in zip(shorter, longer, strict=False):
        torch.testing.assert_close(one, other)


def test_all_trained_tensors_get_a_gradient_and_nothing_shared_does(method):
    features, tokens = text()
    network = made(method)
    sum(logits.square().sum() for logits in unroll(network, features, tokens, STEPS)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())
    assert not network.shared.head.requires_grad


def test_the_gradient_is_the_slope(method):
    features, tokens = text(length=5, batch=1)
    network = made(method).double()
    common = network.shared
    network.shared = SharedWeights(lambda t: common.embed(t).double(), common.tokens, common.head.double())
    weight = next(iter(network.parameters()))

    def loss():
        return sum(logits.log_softmax(-1)[..., 3].sum() for logits in unroll(network, features.double(), tokens, STEPS))

    loss().backward()
    direction, step = torch.randn_like(weight), 1e-6
    with torch.no_grad():
        weight += step * direction
        above = loss()
        weight -= 2 * step * direction
        below = loss()
    torch.testing.assert_close((weight.grad * direction).sum(), (above - below) / (2 * step), rtol=1e-5, atol=1e-6)


def test_a_saved_network_is_the_same_when_it_is_loaded(method, tmp_path):
    network = made(method)
    for parameter in network.parameters():
        kept = parameter.data.bfloat16().float()
        parameter.data = unrounded(*rounded(parameter.data)) if eight_bits.fits(parameter) else kept
    save_weights(network, tmp_path / "weights.safetensors")
    loaded = load_network(family(method), SIZES[method].options(), tmp_path / "weights.safetensors", share)
    features, tokens = text()
    for one, other in zip(unroll(network, features, tokens, 2), unroll(loaded, features, tokens, 2), strict=True):
        assert torch.equal(one, other)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("size", [1.0, 0.02, 900.0])
def test_rounding_to_eight_bits_loses_half_a_step_once_and_nothing_the_second_time(size):
    matrix = size * torch.randn(50, 3 * 32, generator=torch.Generator().manual_seed(1))
    matrix[3, 32:64] = 0
    numbers, steps = rounded(matrix)
    once = unrounded(numbers, steps)
    groups = (matrix - once).abs().unflatten(1, (-1, 32))
    assert (groups <= 0.51 * matrix.unflatten(1, (-1, 32)).abs().amax(2, keepdim=True) / 127 + 1e-7 * size).all()
    again, again_steps = rounded(once)
    assert torch.equal(again, numbers)
    assert torch.equal(again_steps, steps)


@each_row(
    ("change", "said"),
    [
        (lambda t, name: t.pop(name + eight_bits.STEPS), "has no tensor .*, the steps of"),
        (
            lambda t, name: t.update({name + eight_bits.STEPS: t[name + eight_bits.STEPS].float()}),
            "in F32, not .* in F16",
        ),
        (
            lambda t, name: t.update({name + eight_bits.STEPS: t[name + eight_bits.STEPS][:, :0].contiguous()}),
            "is .*, not .* in F16",
        ),
        (lambda t, name: t[name + eight_bits.STEPS].fill_(torch.inf), "has numbers that are not finite"),
        (
            lambda t, name: t.update(
                {norm(t): torch.ones(D, dtype=torch.int8), f"{norm(t)}.steps": t[name + eight_bits.STEPS].clone()}
            ),
            "norm of .* is not a matrix",
        ),
    ],
)
def test_eight_bits_without_their_steps_are_refused(method, change, said, tmp_path):
    file = tmp_path / "weights.safetensors"
    save_weights(made(method), file)
    tensors = load_file(file)
    name = next(name for name, tensor in tensors.items() if tensor.dtype == torch.int8)
    change(tensors, name)
    save_file(tensors, file)
    with pytest.raises(WeightsError, match=said):
        load_network(family(method), SIZES[method].options(), file, share)


def test_the_same_seed_makes_the_same_network(method):
    one, other, third = (made(method, seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], third[name]) for name in one)


@each_row(
    ("change", "said"),
    [
        (lambda t: t.pop(norm(t)), r"has no tensor (layer\.)?norm"),
        (lambda t: t.update(extra=torch.zeros(2)), "tensor 'extra' is not asked for"),
        (lambda t: t.update({norm(t): torch.zeros(D + 1)}), r"norm is \(33,\), not \(32,\)"),
        (lambda t: t.update({norm(t): torch.zeros(D, dtype=torch.int32)}), "norm is in I32"),
        (lambda t: t.update({norm(t): torch.full((D,), torch.nan)}), "norm has numbers that are not finite"),
        (lambda t: t.pop("tokens"), "has no list of tokens"),
        (lambda t: t.update(tokens=torch.zeros(3, dtype=torch.int32)), "names a token twice"),
        (lambda t: t.update(tokens=torch.tensor([-1, 2], dtype=torch.int32)), "or one below 0"),
        (lambda t: t.update(tokens=torch.zeros(3)), "has no list of tokens"),
    ],
)
def test_a_file_with_other_tensors_is_refused(method, change, said, tmp_path):
    file = tmp_path / "weights.safetensors"
    save_weights(made(method), file)
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(WeightsError, match=said) as refused:
        load_network(family(method), SIZES[method].options(), file, share)
    assert str(file) in str(refused.value)


def test_a_token_that_the_target_does_not_have_is_refused():
    with pytest.raises(ModelError, match="token 61 can be guessed, and the target has 61 tokens"):
        SharedWeights.of(ScriptedModel(61, random_says(61)), torch.tensor([3, 61]))


def test_the_target_shares_its_embedding_and_the_rows_of_its_head():
    target = ReferenceModel(shared_network("llama"), 64)
    of_it = SharedWeights.of(target, torch.tensor([7, 3]))
    tokens = torch.tensor([[3, 9], [9, 1]])
    assert torch.equal(of_it.embed(tokens), target.embed(tokens.flatten().tolist()).view(2, 2, -1))
    states = torch.nn.functional.rms_norm(torch.randn(2, target.hidden_size), (target.hidden_size,))
    torch.testing.assert_close(states @ of_it.head.t(), target.head(states)[:, [7, 3]], rtol=1e-3, atol=1e-3)


def test_a_damaged_file_is_refused(method, tmp_path):
    file = tmp_path / "weights.safetensors"
    save_weights(made(method), file)
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(WeightsError, match="bytes of weights, its header says"):
        load_network(family(method), SIZES[method].options(), file, share)


@each_row(
    ("change", "said"),
    [
        ({"hidden": None}, "has no hidden"),
        ({"hiden": 3}, "unknown key 'hiden'; did you mean 'hidden'?"),
        ({"hidden": 1 << 40}, "hidden = 1099511627776 is not a whole number from 1 to 65536"),
        ({"hidden": True}, "hidden = True is not a whole number"),
        ({"taps": []}, "taps"),
        ({"taps": [2, 1]}, r"taps = \[2, 1\] are not ascending layers"),
        ({"taps": ["a"]}, "taps = .* is not a list of whole numbers"),
        ({"taps": 3}, "taps = 3 is not a list of whole numbers"),
        ({"hidden": [3]}, "hidden = .* is not a whole number"),
        ({"epsilon": float("inf")}, "epsilon = inf is not a number above 0"),
        ({"epsilon": "x"}, "epsilon = 'x' is not a number above 0"),
    ],
)
def test_sizes_that_are_none_are_refused(method, change, said):
    options = SIZES[method].options() | change
    options = {key: value for key, value in options.items() if value is not None}
    with pytest.raises(ConfigError, match=said) as refused:
        FAMILIES[family(method)].load().sizes_type.read(options, "drafter.toml, [options]")
    assert str(refused.value).startswith("drafter.toml, [options]")


@pytest.mark.parametrize(("change", "said"), [({"kv_heads": 3}, "multiple of kv_heads"), ({"head_dim": 7}, "is odd")])
def test_heads_that_do_not_go_together_are_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        EagleSizes.read(SIZES["eagle"].options() | change, "drafter.toml, [options]")
