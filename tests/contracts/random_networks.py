"""Trained networks with random weights, those of norms included."""

from __future__ import annotations

from typing import Any

import torch

from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import new_network
from specchat.models.draft_heads.sizes import NetworkSizes


@torch.no_grad()
def random_network(method: str, sizes: NetworkSizes, shared: SharedWeights, generator: torch.Generator) -> Any:
    """A new network whose norms and biases are random too: code that leaves them out shows.

    In a network that begins to learn norms are ones.
    """
    network = new_network(method, sizes, shared, generator)
    for parameter in network.parameters():
        if parameter.dim() != 2 and bool((parameter == parameter.round()).all()):
            parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5, generator=generator))
    return network
