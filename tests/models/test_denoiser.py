"""The diffusion model: what a masked place sees, and that it drafts what it was trained to say."""

from __future__ import annotations

import pytest
import torch
from contracts.models import shared_network
from contracts.random_networks import random_network
from contracts.tiny_networks import tiny_trained
from rows import each_row
from safetensors.torch import load_file, save_file

from specchat.errors import ConfigError, WeightsError
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.cpu_kernels.kernels import native_works
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads import loading
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import load_network, rounded, save_weights, unrounded
from specchat.models.draft_heads.specdiff import SpecDiffSizes, denoiser
from specchat.models.weights.weight_source import TensorSource

D, MASKS, LENGTH = 64, 4, 10
SIZES = SpecDiffSizes(hidden=D, width=32, layers=2, masks=MASKS, inner=32, heads=4, kv_heads=2, head_dim=8)
HIDDEN = torch.zeros(MASKS, dtype=torch.bool)


def shared():
    generator = torch.Generator().manual_seed(1)
    table, head = torch.randn(61, D, generator=generator), torch.randn(20, D, generator=generator)
    return SharedWeights(lambda tokens: table[tokens], torch.arange(20) * 3, head)


@pytest.fixture
def network():
    made = random_network("specdiff", SIZES, shared(), torch.Generator().manual_seed(2))
    with torch.no_grad():
        for matrix in made.added:
            matrix *= 10.0  # attention counts
    return made


@pytest.fixture
def tokens():
    return torch.randint(0, 61, (1, LENGTH), generator=torch.Generator().manual_seed(3))


def alike(before, after):
    """(S, γ) which places of windows say the same."""
    return torch.isclose(before, after, rtol=1e-4, atol=1e-5).all(dim=-1)[0]


@torch.no_grad()
def test_a_masked_place_sees_tokens_on_both_sides_of_it_in_its_window(network, tokens):
    """Token 6 is shown in the last place of the window behind token 2: the masks before it see it."""
    shown = torch.zeros(LENGTH, MASKS, dtype=torch.bool)
    shown[2, 3] = True
    other = tokens.clone()
    other[0, 6] = (other[0, 6] + 1) % 61
    same = alike(network.windows(tokens, shown), network.windows(other, shown))
    assert same[2].tolist() == [False] * MASKS
    assert same[:2].all(), "its text ends before the token, and so do the windows before it"
    assert same[3:6].all(), "the token is masked there, and no window sees another"
    assert not same[6:].any(), "it is in the text there"


@torch.no_grad()
def test_what_is_masked_is_not_seen(network, tokens):
    before = network.windows(tokens, HIDDEN)
    for place in range(LENGTH):
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % 61
        same = alike(before, network.windows(other, HIDDEN))
        assert same[:place].all()
        assert not same[place:].any()


@torch.no_grad()
def test_one_step_guesses_what_windows_of_masks_say(network, tokens):
    found = network.states(torch.empty(0), tokens, 3)
    whole = network.widen(network.windows(tokens, HIDDEN))
    for step, states in enumerate(found, 1):
        assert torch.equal(states, whole[:, 1 : LENGTH - 2, step - 1])


def test_every_tensor_counts_and_gets_a_gradient(network, tokens):
    shown = torch.tensor([True, False, False, True])
    before = network.logits(network.widen(network.windows(tokens, shown)))
    before.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
        with torch.no_grad():
            kept = parameter.clone()
            parameter.view(-1)[: parameter.numel() // 2] *= 1.5
            after = network.logits(network.widen(network.windows(tokens, shown)))
            parameter.copy_(kept)
        assert not torch.allclose(before, after), name


def test_a_saved_network_is_the_same_when_it_is_loaded(network, tokens, tmp_path):
    for parameter in network.parameters():
        kept = parameter.data.bfloat16().float()
        parameter.data = unrounded(*rounded(parameter.data)) if loading.fits(parameter) else kept
    file = tmp_path / "weights.safetensors"
    save_weights(network, file)
    loaded = load_network("specdiff", SIZES.options(), file, lambda tokens: shared())
    assert torch.equal(network.windows(tokens, HIDDEN), loaded.windows(tokens, HIDDEN))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    tensors = load_file(file)
    tensors.pop("norm")
    save_file(tensors, file)
    with pytest.raises(WeightsError, match="has no tensor norm"):
        load_network("specdiff", SIZES.options(), file, lambda tokens: shared())


TEXT = [token % 19 for token in range(3, 243, 3)]
WINDOW = [None, 5, None, 7]


@torch.no_grad()
def test_drafting_says_what_windows_say_however_the_text_was_read():
    target = ReferenceModel(shared_network("llama"), 256)
    trained = tiny_trained("specdiff", target)
    network = load_network(
        "specdiff", trained.options, trained.weights, lambda tokens: SharedWeights.of(target, tokens)
    )
    whole = torch.tensor([[*TEXT, *(token or 0 for token in WINDOW)]])
    window = network.windows(whole, torch.tensor([token is not None for token in WINDOW]))[0, len(TEXT) - 1]
    expected, known = network.logits(network.widen(window)), len(network.shared.tokens)
    for ends in ([80], [3, 4, 9, 80], [70, 74, 80], [80, 80]):
        drafting = denoiser(target, trained, 4096, 0, 2)
        for end in ends:
            drafting.begin([*TEXT[: end // 2], 1, 1])
            drafting.guesses(WINDOW)
            drafting.begin(TEXT[:end])
        torch.testing.assert_close(drafting.guesses(WINDOW).logits[:, :known], expected, rtol=1e-4, atol=1e-4)
    other = denoiser(target, trained, 4096, 0, 2)
    other.begin([*TEXT[:5], 1, *TEXT[6:]])
    assert not torch.allclose(other.guesses(WINDOW).logits[:, :known], expected, rtol=1e-3, atol=1e-3), "a control"


@pytest.mark.skipif(not native_works(), reason="no compiler")
def test_drafting_through_c_is_drafting_through_torch_within_8_bits():
    network = shared_network("llama")
    native = Decoder(NativeNetwork(Shape.of(network.config), TensorSource(network.state_dict()), "int8"), 256)
    exact = ReferenceModel(network, 256)
    said = []
    for target in (native, exact):
        drafting = denoiser(target, tiny_trained("specdiff", exact), 4096, 0, 2)
        drafting.begin(TEXT)
        said.append(drafting.guesses(WINDOW).logits.clone())
    assert 0 < (said[0] - said[1]).abs().max() < 0.1 * said[1].std()


@each_row(
    ("change", "said"),
    [
        ({"masks": 0}, "masks = 0 is not a whole number from 1 to 64"),
        ({"layer": 2}, "unknown key 'layer'; did you mean 'layers'?"),
        ({"taps": [1]}, "unknown key 'taps'"),
        ({"kv_heads": 3}, "multiple of kv_heads"),
    ],
)
def test_sizes_that_are_none_are_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        SpecDiffSizes.read(SIZES.options() | change, "drafter.toml, [options]")
