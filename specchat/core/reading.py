"""Logits and states of the nodes that a network read, and counters of its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.core.head_output import HeadOutput
from specchat.core.record import record
from specchat.core.states import TextStates
from specchat.core.top_tokens import best_tokens


@record
class Reading:
    """What a network says after every node it read.

    Args:
        nodes: (R,) the nodes read in this pass, ascending.
        said: the head's output; row i is what follows `nodes[i]`. Of dropped nodes it holds nothing that may be used.
        alive: the nodes that stayed to the end of the pass.
        pruned: for every dropped node, the layer after which it went.
        taps: layer → (R, d) hidden states after that layer, where asked for.
        rider_logits: (extra rows, V), in the order the extra rows were given.
        rider_states: layer → (extra rows, d), for the tapped layers.
        rider_likeliest: (extra rows, K), like the head's for nodes.
        text_states: the tapped states of tokens of the text that were read in the same pass, where there were any.
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

    @property
    def logits(self) -> Tensor:
        """(R, V) raw, on the model's device; (R, H) where the request's head has rows for some tokens only."""
        return self.said.logits

    def after(self, node: int) -> Tensor:
        """(V,) raw logits of the token that follows `node`, which must have been read and be alive; (H,) of some."""
        assert node in self.alive, f"node {node} was not read to the end"
        return self.logits[self.row(node)]

    def best_after(self, nodes: Sequence[int], count: int) -> list[list[int]]:
        """The `count` likeliest tokens after each of these living nodes, best first. One copy to the host."""
        rows = [self.row(node) for node in nodes]
        if count == 1 and (first := self.said.first) is not None:
            return [[first[row]] for row in rows]
        likeliest = self.said.likeliest
        found = 0 if likeliest is None else likeliest.shape[1]
        assert self.said.tokens is None or count <= found, "of a head for some tokens only so many are named"
        named = _named(likeliest, rows, count)
        return best_tokens(self.logits[rows], count)[1].tolist() if named is None else named

    def best_after_riders(self, extra_rows: Sequence[int], count: int) -> list[list[int]]:
        """The same after extra rows, by their numbers."""
        assert self.extra_row_logits is not None, "no extra rows went along"
        rows = list(extra_rows)
        named = _named(self.extra_row_likeliest, rows, count)
        return best_tokens(self.extra_row_logits[rows], count)[1].tolist() if named is None else named

    def totals_after(self, nodes: Sequence[int]) -> Tensor:
        """(n,) float32: what is to be taken from the logits after these nodes to make log-probabilities of them."""
        rows = [self.row(node) for node in nodes]
        if self.said.totals is not None:
            return self.said.totals[rows]
        if self.logits.device.type != "cpu" or not rows:
            return torch.logsumexp(self.logits[rows].float(), dim=-1)
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
        totals = self.totals_after(asked)[torch.tensor([place[node] for node in nodes])]
        found: list[float] = (self.logits[torch.tensor(rows), torch.tensor(tokens)].float() - totals).tolist()
        return found

    def rows(self, nodes: Sequence[int]) -> list[int]:
        """The rows of these nodes."""
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
    copied: list[list[int]] = likeliest[rows, :count].tolist()
    return copied


@dataclass
class Counters:
    """What a model has computed since it was loaded. Tests use these counters to check that work was really saved."""

    passes: int = 0
    rows: int = 0
    node_layers: float = 0  # rows times the layers they went through; half a layer where attention or MLP is left out
