"""A trained drafter's network, ready to draft for its target."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specchat.config.trained_drafters import TrainedDrafter
from specchat.core.seams import Weights
from specchat.core.trained_network import TrainedNetwork
from specchat.errors import ModelError
from specchat.models.learned.drafting_inputs import DraftingInputs
from specchat.models.learned.eagle_drafting import EagleDrafting
from specchat.models.learned.hydra_drafting import HydraDrafting
from specchat.models.learned.medusa_drafting import MedusaDrafting
from specchat.models.learned.networks import load_network
from specchat.models.learned.shared_weights import SharedWeights
from specchat.models.learned.text_inputs import TextInputs
from specchat.models.learned.token_inputs import TokenInputs
from specchat.models.learned.trimmed_head import HeadProduct, TorchHead, TrimmedHead
from specchat.models.native.arena import Arena
from specchat.models.native.linear import NativeHead, NativeLinear, small_network_kernels
from specchat.models.native.network import NativeNetwork
from specchat.models.own.decoder import Decoder

_LEARNT_TOKENS = 2048
"""For so many of the most frequent tokens it is computed beforehand what steps take of them."""

_DRAFTING: dict[str, Any] = {"hydra": HydraDrafting, "medusa": MedusaDrafting, "eagle": EagleDrafting}


def trained_network(target: Weights, trained: TrainedDrafter, tokens: int) -> TrainedNetwork:
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

    network = load_network(trained.method, trained.options, trained.weights, share)
    sizes = network.sizes
    if sizes.hidden != target.hidden_size or sizes.taps[-1] >= target.layers:
        raise ModelError(
            f"trained drafter {trained.name!r} reads states of {sizes.hidden} numbers after layers up to "
            f"{sizes.taps[-1]}; the target has {target.hidden_size} and {target.layers} layers"
        )
    if isinstance(target, Decoder) and isinstance(target.network, NativeNetwork):
        return drafting(trained.method, network, target, _native(network), target.network.threads)
    return drafting(trained.method, network, target, partial(TorchHead, network.norm, sizes.epsilon))


def drafting(
    method: str, network: Any, target: Weights, head: Callable[[], HeadProduct], threads: int = 1
) -> TrainedNetwork:
    """A network with what it drafts with; `threads` of the target's compiled kernels may draft."""

    def of_tokens(some: list[int]) -> Tensor:
        rows: Tensor = network.of_tokens(network.shared.embed(torch.tensor(some)))
        return rows

    tokens = TokenInputs(of_tokens)
    tokens.within(network.shared.tokens[:_LEARNT_TOKENS].tolist())  # now, so that no round has to
    given = DraftingInputs(
        TextInputs(network.sizes.taps, network.fused),
        tokens,
        TrimmedHead(head, network.shared, None if network.shared.own_head else target),
        threads,
    )
    made: TrainedNetwork = _DRAFTING[method](network, given)
    return made


def _native(network: Any) -> Callable[[], HeadProduct]:
    """Let the compiled kernels multiply for a network; what makes a head for it."""
    kernels, arena = small_network_kernels(), Arena()
    for name, module in list(network.named_children()):
        if isinstance(module, nn.Linear):
            setattr(network, name, NativeLinear(kernels, module.weight, arena))
    return partial(NativeHead, kernels, network.norm, network.sizes.epsilon)
