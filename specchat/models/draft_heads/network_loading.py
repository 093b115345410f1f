"""A trained drafter's network, ready to draft for its target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specchat.config.trained_drafters import TrainedDrafter
from specchat.core.drafting_networks import TrainedNetwork
from specchat.core.seams import Weights
from specchat.errors import ModelError
from specchat.models.cpu_kernels.arena import Arena
from specchat.models.cpu_kernels.linear import EmbeddedProduct, NativeHead, NativeLinear, small_network_kernels
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.trimmed_head import HeadProduct, TorchHead, TrimmedHead
from specchat.models.draft_heads.clover_drafting import CloverDrafting
from specchat.models.draft_heads.drafting_inputs import DraftingInputs
from specchat.models.draft_heads.eagle_drafting import EagleDrafting
from specchat.models.draft_heads.falcon_drafting import FalconDrafting
from specchat.models.draft_heads.hydra_drafting import HydraDrafting
from specchat.models.draft_heads.layer_reading import masked_text
from specchat.models.draft_heads.learning_network import Drafting, LearningNetwork
from specchat.models.draft_heads.networks import load_network, read_tokens
from specchat.models.draft_heads.parallel_drafting import ParallelDrafting
from specchat.models.draft_heads.shared_weights import SharedWeights
from specchat.models.draft_heads.sizes import Sizes
from specchat.models.draft_heads.text_inputs import TextInputs
from specchat.models.draft_heads.text_reading import LastEntryAlone, WholeText
from specchat.models.draft_heads.token_inputs import TokenInputs

_KNOWN_TOKENS = 8192
"""For so many of the most frequent tokens it is computed beforehand what steps take of them, so that no round has to:
for all that a network of our own training can guess, also where fewer are guessed. The text has the others too."""

_DRAFTING: dict[str, Callable[[Any, DraftingInputs], TrainedNetwork]] = {
    "hydra": HydraDrafting,
    "eagle": EagleDrafting,
    "medusa": partial(ParallelDrafting, LastEntryAlone),
    "amphista": partial(ParallelDrafting, WholeText),
    "falcon": FalconDrafting,
    "parallel_spec": partial(ParallelDrafting, masked_text),
    "clover": CloverDrafting,
}


def trained_network(target: Weights, trained: TrainedDrafter, tokens: int) -> LearningNetwork:
    """The network of a trained drafter. It works on the processor; through the compiled kernels where the target does.

    Args:
        tokens: so many of the tokens that it can guess are kept, those that texts use most.

    Raises:
        ConfigError: the sizes that its folder names are wrong.
        WeightsError: its file is damaged, or holds another network.
        ModelError: it was trained for a target of other sizes.
    """

    def share(guessable: Tensor) -> SharedWeights:
        return SharedWeights.of(target, guessable[:tokens])

    def load() -> Any:
        network = load_network(trained.method, trained.options, trained.weights, share)
        _check_sizes(trained, network.sizes, target)
        return network

    known = read_tokens(trained.weights)[:_KNOWN_TOKENS]
    known = known[known < target.vocab_size]
    compiled = target.network if isinstance(target, Decoder) and isinstance(target.network, NativeNetwork) else None
    threads = 1 if compiled is None else compiled.threads

    def make(network: Any, text: TextInputs | None) -> Drafting:
        head = partial(TorchHead, network.normed) if compiled is None else _native(network)
        shared = network.shared
        given = DraftingInputs(
            text or TextInputs(network.sizes.taps, network.fused),
            _tokens(network, target, compiled, known.tolist()),
            TrimmedHead(head, shared.tokens, shared.head, None if shared.own_head else target.head_rows),
            threads,
        )
        return Drafting(_DRAFTING[trained.method](network, given), given)

    return LearningNetwork(load, make, target, trained.sha256)


def _tokens(network: Any, target: Weights, compiled: NativeNetwork | None, known: Sequence[int]) -> TokenInputs:
    """What its steps take of tokens, by the compiled kernels where they have the target's embeddings."""

    @torch.inference_mode()
    def write(some: Sequence[int], to: Tensor) -> None:
        to.copy_(network.of_tokens(network.shared.embed(torch.tensor(some))))

    product = getattr(network, "token", None)  # so a network names what `of_tokens` multiplies normed embeddings with
    embedding = None if compiled is None else compiled.embedding
    writing: Callable[[Sequence[int], Tensor], None] = write
    if isinstance(product, NativeLinear) and embedding is not None:
        writing = EmbeddedProduct(product, embedding, network.sizes.epsilon).write
    return TokenInputs(writing, target.vocab_size, network.sizes.hidden, known)


def _check_sizes(trained: TrainedDrafter, sizes: Sizes, target: Weights) -> None:
    if sizes.hidden != target.hidden_size or sizes.taps[-1] >= target.layers:
        raise ModelError(
            f"trained drafter {trained.name!r} reads states of {sizes.hidden} numbers after layers up to "
            f"{sizes.taps[-1]}; the target has {target.hidden_size} and {target.layers} layers"
        )


def _native(network: Any) -> Callable[[], HeadProduct[Tensor]]:
    """Let the compiled kernels multiply for a network; what makes a head for it."""
    kernels, arena = small_network_kernels(), Arena()
    for part in list(network.modules()):
        for name, module in list(part.named_children()):
            if isinstance(module, nn.Linear):
                setattr(part, name, NativeLinear(kernels, module.weight, arena))
    return partial(NativeHead, kernels, network.norm, network.sizes.epsilon)
