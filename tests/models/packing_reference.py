"""What packing should come to, written down with torch: slow, plain, and read off what product.h says."""

import torch
import torch.nn.functional as F

from specchat.models.cpu_kernels.packing import LANES
from specchat.models.weights.weight_source import GROUP

MIDDLE = {4: 8, 8: 128}
"""The number that stands for zero where a weight has scales only."""


def of_four_bits(weight):
    """Numbers, scales and minima of a `FourBit` as bytes of a product; no minima where they are −8 scales."""
    centred = torch.equal(weight.minimum, -MIDDLE[4] * weight.scale)
    return blocks(4, weight.numbers, weight.scale, None if centred else weight.minimum)


def of_dense(weight):
    """(out, in) float32 weights rounded to 8 bits, as bytes of a product."""
    grouped = F.pad(weight, (0, -weight.shape[1] % GROUP)).view(len(weight), -1, GROUP)
    scale = (grouped.abs().amax(dim=-1) / 127).half().float()
    numbers = (grouped / scale.clamp(min=1e-12)[..., None]).round().clamp(-127, 127) + MIDDLE[8]
    return blocks(8, numbers.to(torch.uint8).flatten(1), scale, None)


def blocks(bits, numbers, scale, minimum):
    """(out, in) numbers, (out, groups) scales and minima → (bytes) uint8."""
    padded = F.pad(numbers, (0, 0, 0, -len(numbers) % LANES))
    parts = [_four(padded) if bits == 4 else _eight(padded)]
    parts += [
        _halves(F.pad(values, (0, 0, 0, -len(values) % LANES))) for values in (scale, minimum) if values is not None
    ]
    return torch.cat(parts, dim=-1).flatten()


def values_of(product):
    """(out, in) float32, exactly what a product is multiplied with."""
    count, groups = -(-product.out // LANES), -(-product.inputs // GROUP)
    wide = LANES * GROUP // 8 * product.bits
    data = product.data.view(count, groups, -1)
    numbers = data[..., :wide].reshape(count, groups, -1, LANES, 4)
    if product.bits == 4:
        numbers = torch.cat([numbers & 15, numbers >> 4], dim=2)
    grouped = numbers.permute(0, 3, 1, 2, 4).reshape(count, LANES, groups, GROUP).float()
    factors = data[..., wide:].contiguous().view(torch.float16).float().view(count, groups, -1, LANES)
    scale = factors[:, :, 0].transpose(1, 2)[..., None]
    minimum = factors[:, :, 1].transpose(1, 2)[..., None] if product.minima else -MIDDLE[product.bits] * scale
    return (grouped * scale + minimum).reshape(count * LANES, groups * GROUP)[: product.out, : product.inputs]


def _four(numbers):
    """(blocks, groups, 256): two inputs that lie 16 apart share a byte."""
    out, length = numbers.shape
    halves = numbers.view(out // LANES, LANES, length // GROUP, 2, 4, 4).permute(3, 0, 2, 4, 1, 5)
    return (halves[0] | halves[1] << 4).flatten(2)


def _eight(numbers):
    """(blocks, groups, 512)."""
    out, length = numbers.shape
    return numbers.view(out // LANES, LANES, length // GROUP, 8, 4).permute(0, 2, 3, 1, 4).flatten(2)


def _halves(values):
    """(out, groups) → (blocks, groups, 32): float16 numbers as bytes."""
    out, groups = values.shape
    return values.view(out // LANES, LANES, groups).transpose(1, 2).half().contiguous().view(torch.uint8)
