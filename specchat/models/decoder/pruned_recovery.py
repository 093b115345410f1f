"""Low-rank additions that bring a pruned network back towards what the whole one wrote, learnt layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import torch
from torch import Tensor

from specchat.models.decoder.adapters import Factors
from specchat.models.decoder.differentiable_layer import NO_FACTORS, DifferentiableLayer
from specchat.models.decoder.shape import Shape
from specchat.models.weights.weight_source import WeightSource

RECOVERED = ("v", "o", "gate", "up", "down")
"""The products that are added to. Rows of queries and keys lie otherwise in files, and change with v and o alone."""

_RANK, _RATE, _DECAY = 8, 4e-3, 0.05

_HELD_OUT, _BETWEEN = 6, 4
"""One of so many texts is held out, and looked at after every so many steps."""


HeadGradient = Callable[[Tensor, Tensor], tuple[float, Tensor, Tensor]]
"""(B, S, d) last states, (B, S) texts → the summed next-token loss, its derivative by them, and another result."""


def recovery(
    shape: Shape, source: WeightSource, texts: Tensor, steps: int, head: HeadGradient
) -> Iterator[Factors | None]:
    """Learn additions from texts of the whole network; None after every piece of work, then the factors.

    The last texts are held out: what is kept are the additions that make them likeliest, or none. Of the
    weights one layer's at a time are in memory, as in `taylor_ranking`.

    Args:
        source: of the pruned network, prepared for a decoder of this shape.
        texts: (B, S) int64 tokens, at least two texts.

    Reference: Ma et al., LLM-Pruner, arXiv:2305.11627 (recovery by LoRA).
    """
    made = torch.Generator().manual_seed(0)
    places = [(layer, name) for layer in range(shape.layers) for name in RECOVERED]
    factors = {(layer, name): _begun(*shape.matrix(name), made) for layer, name in places}
    optimiser = torch.optim.AdamW([part for pair in factors.values() for part in pair], lr=_RATE, weight_decay=_DECAY)
    count = max(1, len(texts) // _HELD_OUT)
    learnt, held_out = texts[:-count], texts[-count:]
    least = head((yield from states_of(shape, source, held_out))[-1], held_out)[0]
    best: Factors = {}
    for step in range(1, steps + 1):
        inputs = yield from states_of(shape, source, learnt, factors)
        gradient = head(inputs.pop(), learnt)[1] / learnt[:, 1:].numel()
        yield None
        for index in reversed(range(shape.layers)):
            hidden = inputs.pop().requires_grad_()
            own = {(index, name): factors[index, name] for name in RECOVERED}
            parts = [part for pair in own.values() for part in pair]
            with torch.enable_grad():
                out = DifferentiableLayer(shape, source, index, added=own)(hidden)
            gradient, *of_parts = torch.autograd.grad(out, (hidden, *parts), gradient)
            for part, of_part in zip(parts, of_parts, strict=True):
                part.grad = of_part
            source.let_go()
            yield None
        optimiser.step()
        if step % _BETWEEN and step < steps:
            continue
        loss = head((yield from states_of(shape, source, held_out, factors))[-1], held_out)[0]
        if loss < least:
            least = loss
            best = {place: (down.detach().clone(), up.detach().clone()) for place, (down, up) in factors.items()}
    yield best


def _begun(outputs: int, inputs: int, made: torch.Generator) -> tuple[Tensor, Tensor]:
    """Factors that add nothing yet."""
    rank = min(_RANK, outputs, inputs)
    down = torch.randn(rank, inputs, generator=made) * inputs**-0.5
    return down.requires_grad_(), torch.zeros(outputs, rank).requires_grad_()


def states_of(
    shape: Shape, source: WeightSource, texts: Tensor, factors: Factors = NO_FACTORS
) -> Generator[None, None, list[Tensor]]:
    """The states (N, T, d) of texts (N, T) before every layer, and after the last one; None after every layer."""
    inputs = [source.embed(texts.flatten().tolist()).view(*texts.shape, -1).float()]
    for index in range(shape.layers):
        with torch.no_grad():
            inputs.append(DifferentiableLayer(shape, source, index, added=factors)(inputs[-1]))
        source.let_go()
        yield None
    return inputs


def recovery_bytes(shape: Shape) -> int:
    """Bytes of the factors, their gradients and moments."""
    sizes = [shape.matrix(name) for name in RECOVERED]
    return 4 * 4 * _RANK * shape.layers * sum(outputs + inputs for outputs, inputs in sizes)
