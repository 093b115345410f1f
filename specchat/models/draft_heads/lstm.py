"""Layers of an LSTM that tell their memory after every entry, so that reading can go on from anywhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Lstm(nn.Module):
    """Layers that read entries one after another, each from what the layer before it says.

    Reference: Hochreiter and Schmidhuber, Long Short-Term Memory, Neural Computation 9(8), 1997, with forget gates.
    """

    def __init__(self, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.width, self.layers = width, layers
        self.inputs = nn.ModuleList(nn.Linear(width if at else inputs, 4 * width, bias=False) for at in range(layers))
        self.back = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        remembers = torch.cat([torch.zeros(width), torch.ones(width), torch.zeros(2 * width)])
        self.bias = nn.Parameter(remembers.repeat(layers).view(layers, 1, -1))  # a matrix would begin at random

    def empty(self, *before: int) -> Tensor:
        """(…, layers, 2, width) the memory before the first entry."""
        return self.bias.new_zeros(*before, self.layers, 2, self.width)

    def forward(self, entries: Tensor, memory: Tensor) -> Tensor:
        """(…, S, layers, 2, width) the memory after each of (…, S, inputs) entries: what is said, then what is kept.

        Args:
            memory: (…, layers, 2, width) before the first of them.
        """
        after = []
        for layer, (inputs, back) in enumerate(zip(self.inputs, self.back, strict=True)):
            given = inputs(entries) + self.bias[layer, 0]
            said, kept = memory[..., layer, :, :].unbind(-2)
            steps = []
            for entry in given.unbind(-2):
                let_in, remember, new, let_out = (entry + back(said)).chunk(4, dim=-1)
                kept = remember.sigmoid() * kept + let_in.sigmoid() * new.tanh()
                said = let_out.sigmoid() * kept.tanh()
                steps.append(torch.stack([said, kept], dim=-2))
            after.append(torch.stack(steps, dim=-3))
            entries = after[-1][..., 0, :]
        return torch.stack(after, dim=-3)
