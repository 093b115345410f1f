"""Randomness as a pure function of (seed, stream, position, token): no state, the same on every device."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.core.device_copy import to_device

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB


class Stream(Enum):
    """One use of randomness each. Using one draw for two decisions biases the text."""

    TARGET = 1
    ACCEPT = 2
    DRAFT = 3


@dataclass(frozen=True)
class Noise:
    """The noise of one reply. A nested engine gets a child, so that its draws are its own."""

    seed: int

    def child(self, label: str) -> Noise:
        """An independent noise for a part with its own decisions."""
        digest = hashlib.blake2b(f"{self.seed}/{label}".encode(), digest_size=8).digest()
        return Noise(int.from_bytes(digest, "big"))

    def gumbel(self, stream: Stream, position: int, tokens: Tensor, salt: tuple[int, ...] = ()) -> Tensor:
        """Standard Gumbel noise for each token id at one position of the text.

        Args:
            position: index in the whole text of the token being drawn.
            tokens: (C,) int64 token ids.
            salt: what else tells draws apart, such as (round, draw) for a draft.

        Returns:
            (C,) float64, on the device of `tokens`. Finite: the uniforms have 52 bits and exclude 0 and 1.
        """
        return self._uniform(stream, position, tokens, salt).log_().neg_().log_().neg_()

    def gumbel_of_few(self, stream: Stream, position: int, tokens: Sequence[int]) -> list[float]:
        """The same for a few tokens, without a tensor: up to rounding, and sooner than torch gets going."""
        key, found = self.key(stream, position, ()), []
        for token in tokens:
            bits = _mix((key + token * _GOLDEN) & _MASK) >> 12
            found.append(-math.log(-math.log((bits + 0.5) * 2.0**-52)))
        return found

    def gumbels(self, stream: Stream, positions: Sequence[int], tokens: Tensor) -> Tensor:
        """The same for several positions at once: (n, C) float64 for (n, C) token ids, a row per position."""
        keys = torch.tensor([[_signed(self.key(stream, position, ()))] for position in positions], dtype=torch.int64)
        return _uniform_of_(tokens * _signed(_GOLDEN) + to_device(keys, tokens.device)).log_().neg_().log_().neg_()

    def uniform(self, stream: Stream, position: int, token: int, salt: tuple[int, ...] = ()) -> float:
        """One uniform number in (0, 1), for a coin flip about one token."""
        bits = _mix((self.key(stream, position, salt) + token * _GOLDEN) & _MASK) >> 12
        return (bits + 0.5) * 2.0**-52

    def _uniform(self, stream: Stream, position: int, tokens: Tensor, salt: tuple[int, ...]) -> Tensor:
        key = self.key(stream, position, salt)
        if tokens.device.type == "cpu":
            return _uniform_on_host_(tokens.numpy().view(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))
        return _uniform_of_(tokens * _signed(_GOLDEN) + _signed(key))

    def key(self, stream: Stream, position: int, salt: tuple[int, ...] = ()) -> int:
        """The 64 bits that the noise of all tokens at one position is made of."""
        key = self.stream_key(stream)
        for part in (position, *salt):
            key = _mix((key + (part + 1) * _GOLDEN) & _MASK)
        return key

    def stream_key(self, stream: Stream) -> int:
        """The 64 bits that the keys of all positions are made of."""
        return _stream_key(self.seed, stream.value)


@lru_cache(maxsize=64)  # a round asks for the same one again and again
def _stream_key(seed: int, stream: int) -> int:
    return _mix((_mix(seed & _MASK) + (stream + 1) * _GOLDEN) & _MASK)


def _uniform_of_(counters: Tensor) -> Tensor:
    """Uniform float64 numbers in (0, 1) from int64 counters. Writes over them."""
    if counters.device.type == "cpu":
        return _uniform_on_host_(counters.numpy().view(np.uint64))
    # One bit less than a float64 holds, so that the half is never rounded up to 1.
    bits = _mix_(counters)
    bits.bitwise_right_shift_(12).bitwise_and_((1 << 52) - 1)
    return bits.to(torch.float64).add_(0.5).mul_(2.0**-52)


def _mix(z: int) -> int:
    """The finaliser of SplitMix64 on a Python integer.

    Reference: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    z = ((z ^ (z >> 30)) * _MIX_A) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_B) & _MASK
    return z ^ (z >> 31)


def _mix_(z: Tensor) -> Tensor:
    """`_mix` on int64 tensors, whose products wrap as unsigned ones do; only the shifts need masking. In place."""
    z.bitwise_xor_((z >> 30).bitwise_and_((1 << 34) - 1)).mul_(_signed(_MIX_A))
    z.bitwise_xor_((z >> 27).bitwise_and_((1 << 37) - 1)).mul_(_signed(_MIX_B))
    return z.bitwise_xor_((z >> 31).bitwise_and_((1 << 33) - 1))


def _uniform_on_host_(z: NDArray[np.uint64]) -> Tensor:
    """`_uniform_of_` for uint64 counters. numpy begins sooner: for few tokens it takes a third of torch's time."""
    for shift, factor in _STEPS:
        z ^= z >> shift
        z *= factor
    z ^= z >> _LAST_SHIFT
    z >>= _UNUSED
    uniform = z.astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-52
    return torch.from_numpy(uniform)


_STEPS = (np.uint64(30), np.uint64(_MIX_A)), (np.uint64(27), np.uint64(_MIX_B))
_LAST_SHIFT, _UNUSED = np.uint64(31), np.uint64(12)
"""The numbers of `_mix` for arrays, and how many of the 64 bits a uniform number leaves out."""


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value
