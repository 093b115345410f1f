"""The formats of a GGUF file's tensors: how many weights a block holds, and in how many bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """Formats of a tensor's rows that are met by name, by the format's own numbers."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q4_K = 12
    BF16 = 30


FOUR_BIT = (Kind.Q4_0, Kind.Q4_1, Kind.Q4_K)
"""Formats whose 4-bit numbers are used without conversion."""


@dataclass(frozen=True)
class Format:
    """One format. `holds_weights`: whether its rows can be turned into floating point numbers."""

    name: str
    block: int
    block_bytes: int
    holds_weights: bool = True

    def row_bytes(self, length: int) -> int:
        """Bytes of a row of so many numbers, which must be whole blocks."""
        return length // self.block * self.block_bytes


FORMATS = {
    0: Format("F32", 1, 4),
    1: Format("F16", 1, 2),
    2: Format("Q4_0", 32, 18),
    3: Format("Q4_1", 32, 20),
    6: Format("Q5_0", 32, 22),
    7: Format("Q5_1", 32, 24),
    8: Format("Q8_0", 32, 34),
    9: Format("Q8_1", 32, 40, holds_weights=False),
    10: Format("Q2_K", 256, 84),
    11: Format("Q3_K", 256, 110),
    12: Format("Q4_K", 256, 144),
    13: Format("Q5_K", 256, 176),
    14: Format("Q6_K", 256, 210),
    15: Format("Q8_K", 256, 292, holds_weights=False),
    16: Format("IQ2_XXS", 256, 66),
    17: Format("IQ2_XS", 256, 74),
    18: Format("IQ3_XXS", 256, 98),
    19: Format("IQ1_S", 256, 50),
    20: Format("IQ4_NL", 32, 18),
    21: Format("IQ3_S", 256, 110),
    22: Format("IQ2_S", 256, 82),
    23: Format("IQ4_XS", 256, 136),
    24: Format("I8", 1, 1, holds_weights=False),
    25: Format("I16", 1, 2, holds_weights=False),
    26: Format("I32", 1, 4, holds_weights=False),
    27: Format("I64", 1, 8, holds_weights=False),
    28: Format("F64", 1, 8, holds_weights=False),
    29: Format("IQ1_M", 256, 56),
    30: Format("BF16", 1, 2),
    34: Format("TQ1_0", 256, 54),
    35: Format("TQ2_0", 256, 66),
    39: Format("MXFP4", 32, 17),
    40: Format("NVFP4", 64, 36),
}
"""By the format's own number."""
