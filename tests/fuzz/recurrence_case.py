"""A recurrent layer over a tree in C: any sizes and numbers, and trees and paths whose rows may not be there."""

from __future__ import annotations

from array import array
from random import Random

import torch
from torch import Tensor

from specchat.models.cpu_kernels.linear import small_network_kernels
from specchat.models.cpu_kernels.recurrence import MOST_KERNEL, CompiledRecurrence, ScanInputs

_ODD = (0.0, 1e38, -1e38, float("inf"), float("nan"))


def run_recurrence(seed: int) -> None:
    """Convolve and scan a tree, and follow a path of it. Every fourth seed is whole; others may be refused."""
    random, damaged = Random(seed), seed % 4 != 0
    made = torch.Generator().manual_seed(seed)

    def numbers(*sizes: int) -> Tensor:
        found = torch.randn(sizes, generator=made)
        if damaged and random.random() < 0.2:
            found.view(-1)[: random.randint(0, 2)] = random.choice(_ODD)
        return found

    def maybe(*sizes: int) -> Tensor | None:
        return numbers(*sizes) if random.random() < 0.5 else None

    count = random.randint(1, 40)
    new = random.randint(1, count)
    above = array("i", [random.randint(-1, row - 1) for row in range(count)])
    path = array("i", [random.randrange(count) for _ in range(random.randint(1, 20))][:count])
    if damaged:
        places = random.choice((above, path))
        places[random.randrange(len(places))] = random.choice((-(2**31), -2, count, 2**20, 2**31 - 1))
    compiled = CompiledRecurrence(small_network_kernels())
    channels, kernel = random.choice((1, 7, 16, 33, 256, 300)), random.randint(1, MOST_KERNEL)
    convolution = numbers(channels, kernel), maybe(channels), random.random() < 0.5
    compiled.convolve(above, new, maybe(kernel - 1, channels), numbers(count, channels), *convolution)
    key_heads, keys, values = random.choice((1, 2, 3)), random.choice((1, 5, 16, 40)), random.choice((1, 15, 16, 33))
    heads = key_heads * random.choice((1, 2, 4))
    state = maybe(heads, keys, values)
    kept = numbers(count, key_heads, keys), numbers(count, heads, values), numbers(count, heads).double()
    inputs = ScanInputs(
        *(numbers(new, key_heads, keys), numbers(new, key_heads, keys), numbers(new, heads, values)),
        *(-numbers(new, heads).abs(), numbers(new, heads), random.random() < 0.5, random.random() < 0.5),
        skip=maybe(heads),
    )
    compiled.scan(above, state, kept, inputs)
    compiled.follow(path, state, kept)
