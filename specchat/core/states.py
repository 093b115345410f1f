"""Hidden states of the text itself, as the target computed them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specchat.core.device_copy import rows_of
from specchat.core.record import record


@record
class HostRow:
    """Where one row of some layers' states lies on the host: torch takes longer to make a view than C to read the row.

    Args:
        address: of the first layer's; the next layer's lies `apart` numbers behind it.
        layers, width: how many, and of how many numbers each.
        states: keep the memory.
    """

    address: int
    apart: int
    layers: int
    width: int
    states: StackedStates


class StackedStates(Mapping[int, Tensor]):
    """Room on the host for states of several layers, (layers, rows, width) float32 without gaps.

    Compiled code writes and reads them where they lie. They become a tensor when somebody looks at them: where the
    processor's caches are empty, asking torch for memory alone takes 10 µs.

    Attributes:
        address: of the first number; valid as long as this lives.
    """

    def __init__(self, layers: tuple[int, ...], rows: int, width: int) -> None:
        """Zeros, layer after layer in this order."""
        self.layers, self.rows, self.width = layers, rows, width
        self._numbers = array("f", [0.0]) * (len(layers) * rows * width)
        self.address = self._numbers.buffer_info()[0]

    @cached_property
    def stacked(self) -> Tensor:
        """(layers, rows, width) float32."""
        with torch.inference_mode(False):  # whoever sees it next may be in another mode
            return torch.frombuffer(self._numbers, dtype=torch.float32).view(-1, self.rows, self.width)

    def __getitem__(self, layer: int) -> Tensor:
        if layer not in self.layers:
            raise KeyError(layer)
        return self.stacked[self.layers.index(layer)]

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


class PickedRows(Mapping[int, Tensor]):
    """Some rows of every layer's states, copied where they are looked at: most states of a text never are."""

    def __init__(self, layers: Mapping[int, Tensor], rows: Sequence[int]) -> None:
        """Layer → (m, d) states, of which these rows count."""
        self.layers, self.rows = layers, rows

    def __getitem__(self, layer: int) -> Tensor:
        return rows_of(self.layers[layer], self.rows)

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def row_of(layers: Mapping[int, Tensor], wanted: Sequence[int], row: int) -> Tensor:
    """(layers, d) one row of some layers' states: a view where they lie in one tensor in this order, else a copy."""
    if isinstance(layers, PickedRows):
        return row_of(layers.layers, wanted, layers.rows[row])
    if isinstance(layers, StackedStates) and layers.layers == tuple(wanted):
        return layers.stacked.select(1, row)
    return torch.stack([layers[layer][row] for layer in wanted])


def rows_by_token(layers: Mapping[int, Tensor], wanted: Sequence[int]) -> Tensor:
    """(n, layers, d) copies of all rows of some layers' states; one copy where they lie in one tensor in this order."""
    if type(layers) is PickedRows and type(layers.layers) is StackedStates and layers.layers.layers == tuple(wanted):
        picked = layers.layers.stacked.numpy().take(layers.rows, axis=1)
        return torch.from_numpy(picked.swapaxes(0, 1))
    return torch.stack([layers[layer] for layer in wanted], dim=1)


def host_row_of(layers: Mapping[int, Tensor], wanted: Sequence[int], row: int) -> HostRow | None:
    """Where a row of (layers, d) states lies on the host; None where it must be copied, or its place is not known."""
    if type(layers) is PickedRows:  # `isinstance` asks the abstract class, for as long as all else here
        row, layers = layers.rows[row], layers.layers
    if type(layers) is not StackedStates or layers.layers != wanted:
        return None
    width = layers.width
    return HostRow(layers.address + 4 * width * row, layers.rows * width, len(wanted), width, layers)


@record
class TextStates:
    """States of neighbouring tokens of the text.

    Args:
        first: position in the text of the first of them.
        layers: layer → (n, d) states after that layer; row i belongs to `tokens[i]`.
    """

    first: int
    tokens: tuple[int, ...]
    layers: Mapping[int, Tensor]

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    def since(self, position: int) -> TextStates:
        skipped = position - self.first
        if skipped <= 0:
            return self
        rows = {layer: states[skipped:] for layer, states in self.layers.items()}
        return TextStates(self.first + skipped, self.tokens[skipped:], rows)

    def only(self, layers: Collection[int]) -> TextStates:
        if layers == self.layers.keys():
            return self
        return TextStates(self.first, self.tokens, {layer: self.layers[layer] for layer in layers})

    def then(self, others: TextStates) -> TextStates:
        """These, and the others right behind them."""
        assert others.first == self.end, "states of a text have no gap"
        rows = {layer: torch.cat([states, others.layers[layer]]) for layer, states in self.layers.items()}
        return TextStates(self.first, self.tokens + others.tokens, rows)


@dataclass(frozen=True)
class HiddenStateSink:
    """A request for the states of a text while it is read.

    Args:
        layers: after which layers.
        take: called with the states of every stretch that was read, in the order of the text.
        skip: called instead, with the position of the first of some tokens and the tokens, where their states were not
            asked for: while drafting does not pay, states are not paid for. None for a drafter that needs them all.
    """

    layers: frozenset[int]
    take: Callable[[TextStates], None]
    skip: Callable[[int, Sequence[int]], None] | None = None
