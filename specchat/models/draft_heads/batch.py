"""Some texts side by side, as a network learns from them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Some texts side by side, padded behind their ends.

    Args:
        features: (B, S, taps, d) float32 states of the target, or (B, S, d), what a network's `fused` made of them.
        tokens: (B, S) int64.
        first: (B,) the first place from which something is drafted: the token in front of the last of the prompt.
        last: (B,) the last place whose next token is known.
        likeliest: (B, S, K) int64, the target's likeliest next tokens.
        log_p: (B, S, K) logarithms of their probabilities.
        rest: (B, S) the probability of all others.
        known: (B, S) bool, where there are features; None: everywhere.
    """

    features: Tensor
    tokens: Tensor
    first: Tensor
    last: Tensor
    likeliest: Tensor
    log_p: Tensor
    rest: Tensor
    known: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None})

    def drafted(self, step: int, anchors: int) -> Tensor:
        """(B, A) bool, from which places the token `step` + 1 further on is one of the reply's."""
        place = torch.arange(anchors, device=self.tokens.device)
        begun, ended = self.first[:, None], self.last[:, None]
        inside: Tensor = (place >= begun) & (place + step <= ended)
        return inside if self.known is None else inside & self.known[:, :anchors]
