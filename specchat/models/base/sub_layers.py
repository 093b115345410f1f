"""Which attentions and MLPs of a network take part in its passes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class SubLayers:
    """The halves of layers that are computed; what is left out adds nothing to the states.

    Args:
        layers: how many the network has.
        attention, mlp: numbers of the layers whose half takes part.
    """

    layers: int
    attention: frozenset[int]
    mlp: frozenset[int]

    @classmethod
    def of_all(cls, layers: int) -> SubLayers:
        """Nothing left out."""
        return cls(layers, frozenset(range(layers)), frozenset(range(layers)))

    def without(
        self, layers: Collection[int] | None, skip_attention: Collection[int], skip_mlp: Collection[int]
    ) -> SubLayers:
        """These less others: whole layers that are not among `layers`, and halves that are skipped."""
        kept = set(range(self.layers) if layers is None else layers)
        named = kept | {*skip_attention, *skip_mlp}
        assert named <= set(range(self.layers)), f"there is no layer {max(named)} among {self.layers}"
        attention = self.attention & (kept - set(skip_attention))
        return SubLayers(self.layers, attention, self.mlp & (kept - set(skip_mlp)))

    @cached_property
    def complete(self) -> bool:
        """Whether nothing is left out."""
        return len(self.attention) == len(self.mlp) == self.layers

    @cached_property
    def computed_in_all(self) -> float:
        """How many layers are computed, where a half counts half."""
        return self.computed(range(self.layers))

    def computed(self, layers: range) -> float:
        """The same of these layers alone."""
        if self.complete:
            return len(layers)
        return sum((layer in self.attention) + (layer in self.mlp) for layer in layers) / 2
