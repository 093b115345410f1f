"""A trained drafter's masks, ready to ride along with its target's passes."""

from __future__ import annotations

import torch
from torch import Tensor

from specchat.config.trained_drafters import TrainedDrafter
from specchat.core.drafting_networks import MaskRows
from specchat.core.request import Adapter
from specchat.core.seams import Weights
from specchat.errors import ModelError
from specchat.models.draft_heads.mask_network import MaskNetwork
from specchat.models.draft_heads.networks import load_network
from specchat.models.draft_heads.shared_weights import SharedWeights
from specchat.models.draft_heads.sizes import MtpSizes


def mask_rows(target: Weights, trained: TrainedDrafter) -> MaskRows:
    """The masks of a trained drafter.

    Raises:
        ConfigError: the sizes that its folder names are wrong.
        WeightsError: its file is damaged, or holds something else.
        ModelError: they were trained for a target of other sizes.
    """

    def share(tokens: Tensor) -> SharedWeights:
        return SharedWeights(torch.nn.Identity(), tokens, torch.empty(0))

    network: MaskNetwork = load_network(trained.method, trained.options, trained.weights, share)
    sizes = network.sizes
    layers = sizes.layers if isinstance(sizes, MtpSizes) else target.layers
    if sizes.hidden != target.hidden_size or layers != target.layers:
        raise ModelError(
            f"trained drafter {trained.name!r} has masks of {sizes.hidden} numbers for {layers} layers; the target has "
            f"{target.hidden_size} and {target.layers} layers"
        )
    factors = network.factors()
    embeddings = tuple(embedding.detach().to(target.device) for embedding in network.embeddings)
    return MaskRows(embeddings, Adapter(factors) if factors else None)
