"""Masks that are trained for a target: embeddings, and what is added to its products for their rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specchat.models.draft_heads.shared_weights import SharedWeights, rms_normalize
from specchat.models.draft_heads.sizes import MtpSizes, PromptTokenSizes

ADAPTED = ("q", "k", "v", "o")
"""The products that an adapter adds to."""

_COMMON, _NOISE, _LEAST = 256, 0.1, 1e-6
"""Masks begin as the mean of so many frequent tokens, with noise of so much of their spread."""


class MaskNetwork(nn.Module):
    """Embeddings of masks, and with a rank a low-rank adapter of the attention.

    The network that they run through is the target's own: `FrozenTarget` while they are trained, afterwards its pass.
    """

    def __init__(self, sizes: PromptTokenSizes, shared: SharedWeights) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = shared
        self.embeddings = nn.ParameterList(torch.empty(sizes.hidden) for _ in range(sizes.masks))
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        if isinstance(sizes, MtpSizes):
            widths = {"q": (sizes.queries, sizes.hidden), "k": (sizes.keys, sizes.hidden)}
            widths |= {"v": widths["k"], "o": (sizes.hidden, sizes.queries)}
            for layer in range(sizes.layers):
                for name in ADAPTED:
                    outputs, inputs = widths[name]
                    self.down[f"{layer}_{name}"] = nn.Parameter(torch.empty(sizes.rank, inputs))
                    self.up[f"{layer}_{name}"] = nn.Parameter(torch.empty(outputs, sizes.rank))

    @torch.no_grad()
    def begin_(self, generator: torch.Generator) -> None:
        """Begin as a token that says nothing: the mean of frequent ones, as long as they are. An adapter begins by
        adding nothing."""
        common = self.shared.embed(self.shared.tokens[:_COMMON]).float().cpu()
        mean, length = common.mean(dim=0), common.norm(dim=-1).mean()
        begun = mean * (length / mean.norm().clamp_min(_LEAST))
        for embedding in self.embeddings:
            noise = torch.randn(self.sizes.hidden, generator=generator)
            embedding.copy_(begun + _NOISE * common.std(dim=0) * noise)
        for down in self.down.values():
            down.normal_(std=down.shape[1] ** -0.5, generator=generator)
        for up in self.up.values():
            up.zero_()

    def factors(self) -> dict[tuple[int, str], tuple[Tensor, Tensor]]:
        """(layer, product) → down (rank, inputs) and up (outputs, rank), as `Adapter` has them."""
        found = {}
        for key, down in self.down.items():
            layer, name = key.split("_")
            found[int(layer), name] = (down, self.up[key])
        return found

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows (…, d) states of the target's last layer."""
        return self.shared.logits(self.normed(states))

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) what the head is multiplied with."""
        return rms_normalize(states, self.sizes.epsilon)
