"""Where the target's choices were decided: its likeliest token after every layer, by its own norm and head.

Reference: nostalgebraist, Interpreting GPT: the logit lens, 2020. The state after a layer is taken as it is, so an
early layer's token is what the head makes of it, not what the layer "means".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specchat.core.reading import Reading
from specchat.core.record import record
from specchat.core.seams import Model

_LOGITS_BYTES = 32 << 20
"""Logits that are held at once, at most, unless a single row has more."""

MOST_TOKENS = 65
"""Tokens of one round whose layers are looked at; a round has no more with trees of the deepest setting."""


@record
class LayerChoice:
    """From this layer on, counted from 1, until the next choice, this is the likeliest token."""

    layer: int
    token: int


@record
class LayerChoices:
    """Of one place of the text.

    Args:
        choices: the first from layer 1 on; the last is the target's choice, and where it was decided.
    """

    layers: int
    choices: tuple[LayerChoice, ...]


def lens_taps(target: Model) -> frozenset[int]:
    """The layers whose states are looked at: all but the last, whose token the pass itself names."""
    return frozenset(range(target.layers - 1))


@torch.inference_mode()
def layer_choices(target: Model, reading: Reading, nodes: Sequence[int]) -> list[LayerChoices]:
    """The likeliest tokens after each layer, behind each of these nodes of a pass that tapped `lens_taps`."""
    nodes = nodes[:MOST_TOKENS]
    last = [row[0] for row in reading.best_after(nodes, 1)]
    rows = [reading.row(node) for node in nodes]
    layers = sorted(lens_taps(target))
    by_layer: list[list[int]] = []
    if layers:
        states = torch.cat([reading.taps[layer][rows] for layer in layers])
        at_once = max(1, _LOGITS_BYTES // (4 * target.vocab_size))
        parts = [states[begin : begin + at_once] for begin in range(0, len(states), at_once)]
        found = [target.head(part).argmax(dim=-1) for part in parts]
        by_layer = torch.cat(found).view(len(layers), len(rows)).tolist()
    by_layer.append(last)
    return [LayerChoices(target.layers, _changes([one[place] for one in by_layer])) for place in range(len(nodes))]


def _changes(tokens: Sequence[int]) -> tuple[LayerChoice, ...]:
    """The layers at which the token changes, with what it changes to."""
    return tuple(
        LayerChoice(layer, token) for layer, token in enumerate(tokens, 1) if layer == 1 or token != tokens[layer - 2]
    )
