"""The semi-autoregressive network while it drafts: a pass for every k depths of a tree."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.states import TextStates
from specchat.core.tree import ROOT, TokenTree
from specchat.models.draft_heads.attention_rows import AttentionRows
from specchat.models.draft_heads.drafting_inputs import DraftingInputs
from specchat.models.draft_heads.falcon import Falcon
from specchat.models.draft_heads.text_entries import TextEntries


class FalconDrafting:
    """A `TrainedNetwork`: the root, and every node k depths below one that ends a block, ends a block too.

    The block of the root are the text's last k entries. Where a block ends, a pass says what follows its last node and
    what follows the nodes of the next k − 1 depths below it, which it says of each depth alone.
    """

    depth = sys.maxsize
    skip = None  # it reads the whole text

    def __init__(self, network: Falcon, given: DraftingInputs) -> None:
        sizes = network.sizes
        self.layers = frozenset(sizes.taps)
        self.passes = 0
        self._network, self._given, self._k = network, given, sizes.block
        self._entries = TextEntries(given)
        self._rows = AttentionRows(sizes.kv_heads, sizes.head_dim)
        self._memory = network.lstm.empty(0)  # the LSTM's, after each entry of the text
        self._block_of: dict[int, int] = {}  # node that ends a block → block
        self._states = torch.empty(0)  # (blocks, k, d) what follows them
        self._after = torch.empty(0)  # (blocks, layers, 2, width) the LSTM's memory after them

    def take(self, states: TextStates) -> None:
        self._entries.take(states)

    @torch.inference_mode()
    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        """Read what is new of the text, and its last block. There is none in a text of fewer than k + 1 tokens."""
        del ahead  # the network reads one block of a node at a time
        self._block_of = {}
        end = len(history) - 1
        if end < self._k or not self._given.complete(history):
            return False
        network = self._network
        for first, inputs, tokens in self._entries.unread(history, again=self._k):
            before = self._memory[first - 1] if first else network.lstm.empty()
            self._remember(first, network.lstm(network.entries(inputs, tokens), before))
            behind = first + len(inputs)
            rows = network.rows(self._memory[first:behind])
            _, keys, values = network.layer.before_attention(rows, torch.arange(first, behind))
            self._rows.write(first, keys, values)
            self.passes += 1
        last = torch.arange(end - self._k, end)
        self._states = self._attended(end - self._k, self._memory[None, last], last, torch.ones(1, end).bool())
        self._after = self._memory[None, end - 1]
        self._block_of[ROOT] = 0
        return True

    def compiled(self, tokens: Sequence[int], rows: int) -> None:
        return None

    def count_passes(self, count: int) -> None:
        self.passes += count

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """A pass where nodes of this depth end blocks; elsewhere the blocks above have said what follows."""
        behind = tree.depths[nodes[0]] % self._k
        ends = [self._above(tree, node, behind) for node in nodes]
        if unread := [node for node in ends if node not in self._block_of]:
            self._read_blocks(tree, unread)
        blocks = [self._block_of[node] for node in ends]
        some = list(dict.fromkeys(blocks))  # siblings have one block above them
        return self._given.guessed(self._states[some, behind]).of([some.index(block) for block in blocks])

    def _read_blocks(self, tree: TokenTree, ends: Sequence[int]) -> None:
        """One pass for the blocks that end with these nodes of one depth; those above them were read."""
        network, k, text = self._network, self._k, len(self._entries)
        above = [self._block_of[self._above(tree, node, k)] for node in ends]
        tokens = self._given.tokens.of([tree.tokens[part] for node in ends for part in tree.path(node)[-k:]])
        entries = network.entries(self._states[above], tokens.view(len(ends), k, -1))
        memory = network.lstm(entries, self._after[above])
        first, depth = len(self._block_of), tree.depths[ends[0]]
        self._block_of.update(zip(ends, range(first, first + len(ends)), strict=True))
        seen = torch.zeros(len(ends), text + (len(self._block_of) - 1) * k, dtype=torch.bool)
        seen[:, :text] = True
        for block, node in enumerate(ends):
            for below in range(depth, 0, -k):
                row = text + (self._block_of[self._above(tree, node, depth - below)] - 1) * k
                seen[block, row : row + k] = True
        positions = (text + depth - k + torch.arange(k)).repeat(len(ends))
        states = self._attended(text + (first - 1) * k, memory, positions, seen)
        self._states = torch.cat([self._states, states])
        self._after = torch.cat([self._after, memory[:, -1]])
        self.passes += 1

    def _attended(self, place: int, memory: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """(n, k, d) what follows n blocks, whose rows are written from `place` on.

        Args:
            memory: (n, k, layers, 2, width) the LSTM's after their entries.
            positions: (n · k,).
            seen: (n, rows) bool, what all entries of each block attend to.
        """
        network = self._network
        rows = network.rows(memory).flatten(0, 1)
        mixed = self._rows.attend(
            place, *network.layer.before_attention(rows, positions), seen.repeat_interleave(self._k, dim=0)
        )
        return network.layer.after_attention(rows, mixed).view(-1, self._k, rows.shape[-1])

    def _remember(self, first: int, memory: Tensor) -> None:
        end = first + len(memory)
        if end > len(self._memory):
            more = max(end, 2 * len(self._memory), 256) - len(self._memory)
            self._memory = F.pad(self._memory, (0, 0, 0, 0, 0, 0, 0, more))
        self._memory[first:end] = memory

    @staticmethod
    def _above(tree: TokenTree, node: int, depths: int) -> int:
        """The node so many depths above."""
        for _ in range(depths):
            node = tree.parents[node]
        return node
