"""The decoder layer while it drafts: keys and values of the text and of one tree's nodes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.request import CHUNK_TOKENS
from specchat.core.states import TextStates
from specchat.core.trained_network import Ahead, Guessed
from specchat.core.tree import ROOT, TokenTree
from specchat.models.base.cache_rows import common_prefix
from specchat.models.learned.drafting_inputs import DraftingInputs
from specchat.models.learned.eagle import Eagle


class EagleDrafting:
    """A `TrainedNetwork`: entries of the text are read when a tree begins, nodes depth by depth.

    Entry s pairs what was made of the target's states at token s with token s + 1, so the last entry is the root's.
    Nodes are written behind the text's entries and are forgotten with their tree: once their tokens are part of the
    text they are read again, from the target's own states.
    """

    depth = sys.maxsize
    skip = None  # it reads the whole text

    def __init__(self, network: Eagle, given: DraftingInputs) -> None:
        self.layers = frozenset(network.sizes.taps)
        self.passes = 0
        self._network, self._given = network, given
        self._text: list[int] = []  # the tokens of the entries that were read
        self._root = torch.empty(0)  # (1, d) state of the last entry
        sizes = network.sizes
        self._keys = torch.empty(sizes.kv_heads, 0, sizes.head_dim)
        self._values = torch.empty(sizes.kv_heads, 0, sizes.head_dim)
        self._row_of: dict[int, int] = {}  # nodes below the root → row behind the entries
        self._states = torch.empty(0)

    def take(self, states: TextStates) -> None:
        self._given.take(states)
        del self._text[max(0, states.first - 1) :]  # entry s is made of state s

    @torch.inference_mode()
    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        del ahead  # attention reads one level at a time
        self._row_of = {}
        if not self._given.complete(history):
            return False
        tokens = history[1:]
        # The last entry is read in any case: its state is where drafting begins.
        kept = min(common_prefix(self._text, tokens), len(tokens) - 1)
        for first in range(kept, len(tokens), CHUNK_TOKENS):
            some = tokens[first : first + CHUNK_TOKENS]
            end = first + len(some)
            seen = torch.ones(len(some), end, dtype=torch.bool).tril(first)
            states = self._pass(self._given.text.rows(first, end), some, torch.arange(first, end), first, seen)
            self._root = states[-1:]
        self._text = list(tokens)
        return True

    def compiled(self, tokens: Sequence[int], rows: int) -> None:
        return None

    def count_passes(self, count: int) -> None:
        self.passes += count

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """One step for nodes of one depth; the root's is done."""
        if nodes[0] == ROOT:
            return self._given.guessed(self._root)
        entries, first = len(self._text), len(self._row_of)
        self._row_of.update(zip(nodes, range(first, first + len(nodes)), strict=True))
        seen = torch.zeros(len(nodes), entries + len(self._row_of), dtype=torch.bool)
        seen[:, :entries] = True
        for row, node in enumerate(nodes):
            seen[row, [entries + self._row_of[above] for above in tree.path(node)]] = True
        parents = [self._row_of[tree.parents[node]] + 1 if tree.parents[node] != ROOT else 0 for node in nodes]
        before = self._root if first == 0 else self._states
        tokens = [tree.tokens[node] for node in nodes]
        positions = torch.full((len(nodes),), entries - 1 + tree.depths[nodes[0]])
        states = self._pass(before[parents], tokens, positions, entries + first, seen)
        self._states = torch.cat([before, states])
        return self._given.guessed(states)

    def _pass(self, inputs: Tensor, tokens: Sequence[int], positions: Tensor, place: int, seen: Tensor) -> Tensor:
        """(n, d) states of rows that are written from `place` on.

        Args:
            inputs: (n, d) fused states of the target, or states of this network.
            tokens: n, those that follow them.
            seen: (n, place + n) bool, what each row attends to.
        """
        network, end = self._network, place + len(tokens)
        residual, queries, keys, values = network.before_attention(inputs, self._given.tokens.of(tokens), positions)
        self._room_for(end)
        self._keys[:, place:end] = keys.transpose(0, 1)
        self._values[:, place:end] = values.transpose(0, 1)
        mixed = _attend(queries, self._keys[:, :end], self._values[:, :end], seen)
        self.passes += 1
        return network.after_attention(residual, mixed)

    def _room_for(self, rows: int) -> None:
        if rows > self._keys.shape[1]:
            more = max(rows, 2 * self._keys.shape[1], 512) - self._keys.shape[1]
            self._keys, self._values = (F.pad(kept, (0, 0, 0, more)) for kept in (self._keys, self._values))


def _attend(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """(n, heads · head_dim). The heads that share keys are rows of one product, so that no keys are copied.

    Args:
        queries: (n, heads, head_dim).
        keys, values: (kv_heads, rows, head_dim).
        seen: (n, rows) bool.
    """
    (rows, heads, size), shared = queries.shape, len(keys)
    grouped = queries.view(rows, shared, heads // shared, size).transpose(0, 1).reshape(shared, -1, size)
    scores = torch.bmm(grouped * size**-0.5, keys.transpose(1, 2))
    scores.view(shared, rows, -1, keys.shape[1]).masked_fill_(~seen[:, None], -torch.inf)
    mixed = torch.bmm(scores.softmax(dim=-1), values)
    return mixed.view(shared, rows, -1, size).transpose(0, 1).reshape(rows, heads * size)
