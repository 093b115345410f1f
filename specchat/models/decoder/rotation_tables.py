"""What rotates queries and keys at each position of a text, computed as far as texts have come."""

from __future__ import annotations

import torch
from torch import Tensor

from specchat.models.base.shape import Shape

_FIRST_POSITIONS = 16384
"""More than most texts have, and for most models less than a hundredth of what the weights take."""

_PAST_CONTEXT = 1024
"""A tree may reach a little past the end of the context before it is cut."""


class RotationTables:
    """Tables for a decoder and for those made from it. They grow by doubling, and growing changes no bit of them.

    A configuration may claim a context of millions of tokens, and tables for all of it would take gigabytes.

    Attributes:
        context_tokens: the longest text; they grow little further.
        positions: how many there are rotations for.
    """

    def __init__(self, shape: Shape, device: torch.device, context_tokens: int) -> None:
        """Tables for the first positions."""
        self.context_tokens = context_tokens
        self._shape = shape
        self._device = device
        self._first = self.positions = min(_FIRST_POSITIONS, context_tokens + _PAST_CONTEXT)
        self._tables = self._computed(0, self._first)

    def until(self, end: int) -> tuple[Tensor | None, ...]:
        """For each kind of attention, (positions, 1, head_dim / 2) complex64, with at least `end` positions.

        None for a kind that rotates nothing. The same tuple for as long as nothing has grown.
        """
        if end > self.positions:
            grown = self._next(end, self.positions, self.context_tokens)
            more = self._computed(self.positions, grown)
            self._tables = tuple(
                None if old is None or new is None else torch.cat([old, new])
                for old, new in zip(self._tables, more, strict=True)
            )
            self.positions = grown
        return self._tables

    def bytes_until(self, end: int, longest: int | None = None) -> int:
        """The most that they take, beyond what they took at first, until there are so many positions.

        Args:
            longest: instead of `context_tokens`.
        """
        longest = self.context_tokens if longest is None else longest
        positions = most = self.positions
        while positions < end:
            positions = self._next(min(end, 2 * positions), positions, longest)
            most = 2 * positions  # the old table and what is added to it, beside the new one
        rotated = sum(kind.frequencies is not None for kind in self._shape.attention_kinds)
        return (most - self._first) * rotated * self._shape.head_dim // 2 * torch.complex64.itemsize

    def _computed(self, first: int, end: int) -> tuple[Tensor | None, ...]:
        """On the processor, so that every device has the same bits, and then on the device."""
        tables = (kind.rotations(end, first) for kind in self._shape.attention_kinds)
        return tuple(None if table is None else table.to(self._device) for table in tables)

    @staticmethod
    def _next(end: int, positions: int, context_tokens: int) -> int:
        """How many positions there are once `end` are wanted and there are fewer."""
        return max(end, min(2 * positions, context_tokens + _PAST_CONTEXT))
