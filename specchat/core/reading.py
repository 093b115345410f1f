"""A pass's results: the head's output and states of the nodes that a network read, and counters of its work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specchat.core.device_copy import picked
from specchat.core.record import record
from specchat.core.sampling import best_tokens
from specchat.core.states import TextStates


@record
class Elsewhere:
    """The answer of a target on another machine beside the head's output.

    Args:
        path, bonus, sources: the verdict, where it was asked for; `path` is None where it was not.
    """

    took_s: float
    path: tuple[int, ...] | None = None
    bonus: int = 0
    sources: tuple[int | None, ...] = ()


@record
class Reading:
    """The results of a pass: the head's output, and states, after every node that was read.

    Args:
        nodes: (R,) the nodes read in this pass, ascending.
        said: the head's output; row i is what follows `nodes[i]`. Of dropped nodes it holds nothing that may be used.
        alive: the nodes that stayed to the end of the pass.
        pruned: for every dropped node, the layer after which it went.
        taps: layer → (R, d) hidden states after that layer, where asked for.
        extra_row_logits: (extra rows, V), in the order the extra rows were given.
        extra_row_states: layer → (extra rows, d), for the tapped layers.
        extra_row_likeliest: (extra rows, K), like the head's for nodes.
        text_states: the tapped states of tokens of the text that were read in the same pass, where there were any.
        elsewhere: set where the target is on another machine.
        extra_row_last: (extra rows, d) states after the last layer in the place of logits, where none were wanted.
    """

    nodes: tuple[int, ...]
    said: HeadOutput
    alive: frozenset[int]
    pruned: Mapping[int, int] = field(default_factory=dict)
    taps: Mapping[int, Tensor] = field(default_factory=dict)
    extra_row_logits: Tensor | None = None
    extra_row_states: Mapping[int, Tensor] = field(default_factory=dict)
    extra_row_likeliest: Tensor | None = None
    text_states: TextStates | None = None
    elsewhere: Elsewhere | None = None
    extra_row_last: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """(R, V) raw, on the model's device; (R, H) where the request's head has rows for some tokens only."""
        return self.said.logits

    @property
    def on_host(self) -> Reading:
        """The same reading with its logits on the host, in one copy; itself where they are there."""
        return self if self.said.logits.device.type == "cpu" else self._copied

    @cached_property
    def _copied(self) -> Reading:
        tokens = None if self.said.tokens is None else self.said.tokens.cpu()
        return replace(self, said=HeadTensors(self.said.logits.cpu(), tokens=tokens))

    def after(self, node: int) -> Tensor:
        """(V,) raw logits of the token that follows `node`, which must have been read and be alive; (H,) of some.

        On the host: from a device all rows are copied when the first is asked for.
        """
        assert node in self.alive, f"node {node} was not read to the end"
        return self.on_host.logits[self.row(node)]

    def best_after(self, nodes: Sequence[int], count: int) -> list[list[int]]:
        """The `count` likeliest tokens after each of these living nodes, best first. One copy to the host."""
        rows = [self.row(node) for node in nodes]
        if count == 1 and (first := self.said.first) is not None:
            return [[first[row]] for row in rows]
        likeliest = self.said.likeliest
        found = 0 if likeliest is None else likeliest.shape[1]
        assert self.said.tokens is None or count <= found, "of a head for some tokens only so many are named"
        named = _named(likeliest, rows, count)
        return best_tokens(picked(self.logits, rows), count)[1].tolist() if named is None else named

    def best_after_extra_rows(self, extra_rows: Sequence[int], count: int) -> list[list[int]]:
        """The same after extra rows, by their numbers."""
        assert self.extra_row_logits is not None, "no extra rows went along"
        rows = list(extra_rows)
        named = _named(self.extra_row_likeliest, rows, count)
        return best_tokens(picked(self.extra_row_logits, rows), count)[1].tolist() if named is None else named

    def logsumexp_after(self, nodes: Sequence[int]) -> Tensor:
        """(n,) float32: what is to be taken from the logits after these nodes to make log-probabilities of them."""
        rows = [self.row(node) for node in nodes]
        if self.said.logsumexp is not None:
            return picked(self.said.logsumexp, rows)
        if self.logits.device.type != "cpu" or not rows:
            return torch.logsumexp(picked(self.logits, rows).float(), dim=-1)
        if rows == [*range(rows[0], rows[0] + len(rows))]:
            return torch.logsumexp(self.logits[rows[0] : rows[-1] + 1].float(), dim=-1)
        # One by one, without a copy of the rows: for a copy torch wakes its threads, which takes longer than the sums.
        return torch.stack([torch.logsumexp(self.logits[row].float(), dim=-1) for row in rows])

    def logprobs_after(self, nodes: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """(n,) what the logits after these nodes give these tokens, one each. One copy to the host.

        Args:
            nodes: those of one node stand side by side.
        """
        if not tokens:
            return []
        rows = [self.row(node) for node in nodes]
        if self.said.log_probabilities is not None:
            return self.said.log_probabilities(rows, tokens)
        asked = list(dict.fromkeys(nodes))
        place = {node: at for at, node in enumerate(asked)}
        logsumexp = picked(self.logsumexp_after(asked), [place[node] for node in nodes])
        found: list[float] = (picked(self.logits, rows, tokens).float() - logsumexp).tolist()
        return found

    def rows(self, nodes: Sequence[int]) -> list[int]:
        if self.nodes and self.nodes[-1] == len(self.nodes) - 1:  # a whole tree's
            return list(nodes)
        return [self.row(node) for node in nodes]

    def row(self, node: int) -> int:
        """The row of `node`; a whole tree's reading has the node's own number."""
        if node < len(self.nodes) and self.nodes[node] == node:
            return node
        return self.nodes.index(node)


def _named(likeliest: Tensor | None, rows: list[int], count: int) -> list[list[int]] | None:
    """(n, count) what was named of these rows; None where too few were."""
    if likeliest is None or count > likeliest.shape[1]:
        return None
    if likeliest.device.type == "cpu":  # numpy takes 3 µs, where torch takes 40
        named: list[list[int]] = likeliest.numpy()[rows, :count].tolist()
        return named
    copied: list[list[int]] = picked(likeliest, rows)[:, :count].tolist()
    return copied


@dataclass
class Counters:
    """Counters of a model's work since it was loaded. Tests use these counters to check that work was really saved."""

    passes: int = 0
    rows: int = 0
    node_layers: float = 0  # rows times the layers they went through; half a layer where attention or MLP is left out

    def count(self, rows: int, layers: float = 0) -> None:
        """A pass of so many rows through so many layers."""
        self.passes += 1
        self.rows += rows
        self.node_layers += rows * layers


class HeadOutput(Protocol):
    """Logits, and what the head computed on the way to them."""

    @property
    def logits(self) -> Tensor:
        """(n, V), or (n, H) where the head has rows for some tokens only."""

    @property
    def likeliest(self) -> Tensor | None:
        """(n, K) tokens with the highest logits, best first, of equals the one with the lower number, where they are
        found on the way."""

    @property
    def logsumexp(self) -> Tensor | None:
        """(n,) logarithm of the sum of the exponentials of the logits, likewise."""

    @property
    def highest(self) -> Tensor | None:
        """(n, K) the logits of `likeliest`, likewise."""

    @property
    def tokens(self) -> Tensor | None:
        """(H,) int64, the token of each column; None where all tokens have one."""

    @property
    def first(self) -> Sequence[int] | None:
        """(n,) the first of `likeliest` for each row as plain numbers, where they lie on the host."""

    @property
    def in_memory(self) -> NamedInMemory | None:
        """`likeliest`, `highest` and `logsumexp` without tensors, where they lie in memory side by side."""

    @property
    def row_in_memory(self) -> Callable[[int], RowInMemory] | None:
        """Tells where the logits of a row lie, where they were written to the host's memory."""

    @property
    def log_probabilities(self) -> LogProbabilities | None:
        """Reads some of them off the logits faster than torch, where there is such a way."""


@record
class HeadTensors:
    """A `HeadOutput` whose tensors are made already."""

    logits: Tensor
    likeliest: Tensor | None = None
    logsumexp: Tensor | None = None
    highest: Tensor | None = None
    tokens: Tensor | None = None
    first: Sequence[int] | None = None
    in_memory: NamedInMemory | None = None
    row_in_memory: Callable[[int], RowInMemory] | None = None
    log_probabilities: LogProbabilities | None = None


LogProbabilities = Callable[[Sequence[int], Sequence[int]], list[float]]
"""(n,) rows, and of each a token → (n,) what its logits give the token; tokens of one row stand side by side."""


class NamedInMemory(NamedTuple):
    """Where the likeliest tokens of n rows lie in memory, for compiled code; valid as long as the output.

    Args:
        width: V, of the logits.
        named: K, so many of each row.
        likeliest: address of (n, K) int32 tokens, best first.
        highest: of (n, K) float32, their logits.
        logsumexp: of (n,) float32, the logarithms of the sums of the exponentials of the logits.
    """

    width: int
    named: int
    likeliest: int
    highest: int
    logsumexp: int


class RowInMemory(NamedTuple):
    """A row of logits on the host without a tensor: making one takes torch as long as C takes to draw from the row.

    Args:
        address: of (width) float32 without gaps; valid as long as the output.
        tensor: makes the (width,) tensor.
    """

    address: int
    width: int
    tensor: Callable[[], Tensor]
