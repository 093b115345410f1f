"""Falcon: a semi-autoregressive network, every pass reads a block of entries and guesses the block that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.core.device_copy import rows_of
from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.tree import ROOT, TokenTree
from specchat.models.draft_heads.drafting import Drafting, DraftingInputs, TextEntries
from specchat.models.draft_heads.head import Batch, DraftHead, Recipe, SharedWeights
from specchat.models.draft_heads.layers import AttentionRows, DecoderLayer, KeysValues, attend_in_groups, rms_normalize
from specchat.models.draft_heads.sizes import MOST_INNER, LayerSizes, size

_LSTM_LAYERS = 2


@dataclass(frozen=True)
class FalconSizes(LayerSizes):
    """Sizes of `falcon`: `width` of the LSTM, and k = `block` tokens that are guessed in a pass."""

    width: int = size(MOST_INNER, default=256)
    block: int = size(8, least=2, default=2)


class Lstm(nn.Module):
    """Layers that read entries one after another, each from what the layer before it says.

    Reference: Hochreiter and Schmidhuber, Long Short-Term Memory, Neural Computation 9(8), 1997, with forget gates.
    """

    def __init__(self, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.width, self.layers = width, layers
        self.inputs = nn.ModuleList(nn.Linear(width if at else inputs, 4 * width, bias=False) for at in range(layers))
        self.back = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        remembers = torch.zeros(4 * width)
        remembers[width : 2 * width] = 1.0  # torch.cat without memory loads torch._dynamo, which takes a second
        self.bias = nn.Parameter(remembers.repeat(layers).view(layers, 1, -1))  # a matrix would begin at random

    def empty(self, *before: int) -> Tensor:
        """(…, layers, 2, width) the memory before the first entry."""
        return self.bias.new_zeros(*before, self.layers, 2, self.width)

    def forward(self, entries: Tensor, memory: Tensor) -> Tensor:
        """(…, S, layers, 2, width) the memory after each of (…, S, inputs) entries: what is said, then what is kept.

        Args:
            memory: (…, layers, 2, width) before the first of them.
        """
        after = []
        for layer, (inputs, back) in enumerate(zip(self.inputs, self.back, strict=True)):
            given = inputs(entries) + self.bias[layer, 0]
            said, kept = memory[..., layer, :, :].unbind(-2)
            steps = []
            for entry in given.unbind(-2):
                let_in, remember, new, let_out = (entry + back(said)).chunk(4, dim=-1)
                kept = remember.sigmoid() * kept + let_in.sigmoid() * new.tanh()
                said = let_out.sigmoid() * kept.tanh()
                steps.append(torch.stack([said, kept], dim=-2))
            after.append(torch.stack(steps, dim=-3))
            entries = after[-1][..., 0, :]
        return torch.stack(after, dim=-3)


class Falcon(DraftHead[FalconSizes]):
    """Guesses k tokens in a pass, from the k entries before them; its own states and the guesses are the next k.

    An entry pairs the fused states of the target at one token with the embedding of the token that follows, as with
    `eagle`. Entries go through an LSTM, then through a decoder layer with relaxed causal attention: an entry sees the
    text and all entries of its own block, those behind it too. The layer's output at entry s stands for the target's
    state at token s + k. Within a block no guess depends on another; between blocks they do.

    Reference: Gao et al., Falcon: Faster and Parallel Inference of Large Language Models through Enhanced
    Semi-Autoregressive Drafting and Custom-Designed Decoding Tree, arXiv:2412.12639. Differs: states of several layers
    go in, the LSTM is narrower than the states, both its layers are heard (with the second alone it learnt slower),
    blocks end at every place of a text while learning, not at each k-th, a chain goes on with its own states there,
    and no noise is added to them. Trees are those of any policy.
    """

    recipe = Recipe(reads_back=True, steps=4, glancing=0.4)
    sizes_type = FalconSizes

    def __init__(self, sizes: FalconSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared, token_norm=True)
        d = sizes.hidden
        self.state_norm = nn.Parameter(torch.ones(d))
        self.lstm = Lstm(2 * d, sizes.width, _LSTM_LAYERS)
        self.widen = nn.Linear(sizes.width, d, bias=False)
        self.layer = DecoderLayer(sizes)

    @property
    def added(self) -> tuple[Tensor, ...]:
        return self.layer.added

    def entries(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """(…, 2 · d) from (…, d) fused states, or states of the pass before, and (…, d) outputs of `of_tokens`."""
        return torch.cat([tokens, rms_normalize(inputs, self.sizes.epsilon) * self.state_norm], dim=-1)

    def rows(self, memory: Tensor) -> Tensor:
        """(…, d) inputs of the layer, from (…, layers, 2, width) the LSTM's memory after them."""
        said = memory[..., 0, :].sum(dim=-2)
        widened: Tensor = self.widen(rms_normalize(said, self.sizes.epsilon))
        return widened

    def states(self, fused: Tensor, tokens: Tensor, steps: int, shown: Tensor | None = None) -> list[Tensor]:
        """As `DraftNetwork.states`.

        A place before which there are fewer than k entries takes the first of them several times; nothing is drafted
        there.

        Args:
            shown: (B, S − steps, k) bool, which entries of every place's first block are replaced by those k further
                on; None: none.
        """
        block, anchors = self.sizes.block, tokens.shape[1] - steps
        taken = self.of_tokens(self.shared.embed(tokens))
        places = torch.arange(anchors, device=fused.device)
        ahead = torch.arange(block, device=fused.device)
        every = self.entries(fused[:, :-1], taken[:, 1:])
        read = self.lstm(every[:, :anchors], self.lstm.empty(len(fused)))
        _, *text = self.layer.before_attention(self.rows(read), places)
        nothing = self.lstm.empty(len(fused), block)
        memory = torch.cat([nothing.to(read.dtype), read], dim=1)[:, :anchors]
        at = (places[:, None] + ahead + 1 - block).clamp_min(0)
        entries = every[:, at]
        if shown is not None:
            further = (places[:, None] + ahead + 1).clamp_max(every.shape[1] - 1)
            entries = torch.where(shown[..., None], every[:, further], entries)
        own: list[KeysValues] = []
        found: list[Tensor] = []
        while True:
            after = self.lstm(entries, memory)
            rows = self.rows(after)
            queries, keys, values = (
                each.view(*rows.shape[:3], *each.shape[2:])
                for each in self.layer.before_attention(rows.flatten(1, 2), at.flatten())
            )
            own.append(KeysValues(keys, values))
            blocks = KeysValues(torch.cat([one.keys for one in own], 2), torch.cat([one.values for one in own], 2))
            sees = torch.ones(block, blocks.keys.shape[2], dtype=torch.bool, device=fused.device)
            mixed = attend_in_groups(queries, KeysValues(*text), blocks, sees, back=block)
            states = self.layer.after_attention(rows, mixed)
            found += states.unbind(2)
            if len(found) >= steps:
                return found[:steps]
            at = places[:, None] + ahead + 1 + len(found) - block
            entries, memory = self.entries(states, taken[:, at + 1]), after[:, :, -1]

    def learning_states(
        self, fused: Tensor, batch: Batch, columns: Tensor, steps: int, glancing: float, generator: torch.Generator
    ) -> list[Tensor]:
        """`states` after it has been shown the truth in some places.

        The network first guesses the block that follows every place. Of each text so many tokens are shown as the share
        `glancing` of the guesses that were wrong, in runs that begin with a block's first entry and leave its last one:
        what is shown is the true state and the true token that an entry was to guess. So the network learns how the
        tokens of a block depend on each other, first with much help and at the end, where the share is 0, with none.

        Reference: Gao et al., Falcon, arXiv:2412.12639, Coupled Sequential Glancing Distillation; after Qian et al.,
        Glancing Transformer, arXiv:2008.07905. Differs: a block ends at every place of a text, and each block that is
        shown something sees it alone.
        """
        if not glancing:
            return self.states(fused, batch.tokens, steps)
        anchors, block = batch.tokens.shape[1] - steps, self.sizes.block
        wrong = torch.zeros(len(fused), dtype=torch.int64)
        with torch.no_grad():
            for step, states in enumerate(self.states(fused, batch.tokens, block), 1):
                rows, places = batch.drafted(step, anchors).nonzero(as_tuple=True)
                wanted = columns[batch.tokens[rows, places + step + 1]]
                missed = self.logits(states[rows, places]).argmax(dim=1) != wanted
                wrong += torch.bincount(rows[missed], minlength=len(wrong)).cpu()
        shown = shown_entries(batch.drafted(1, anchors).cpu(), (glancing * wrong).long(), block, generator)
        return self.states(fused, batch.tokens, steps, shown.to(fused.device))

    def drafting(self, given: DraftingInputs) -> Drafting:
        return FalconDrafting(self, given)


def shown_entries(places: Tensor, counts: Tensor, block: int, generator: torch.Generator) -> Tensor:
    """(B, A, k) bool, which entries of each place's first block are to be shown: `counts` of each text, at random.

    Args:
        places: (B, A) bool, where something is drafted.
        counts: (B,) int64.
    """
    shown = torch.zeros(*places.shape, block, dtype=torch.bool)
    for row, (where, count) in enumerate(zip(places, counts.tolist(), strict=True)):
        some = where.nonzero()[:, 0]
        some = some[torch.randperm(len(some), generator=generator)]
        runs = torch.randint(1, block, (len(some),), generator=generator)
        runs = (count - (runs.cumsum(0) - runs)).clamp_min(0).minimum(runs)
        shown[row, some] = torch.arange(block) < runs[:, None]
    return shown


class FalconDrafting(Drafting):
    """The root, and every node k depths below one that ends a block, ends a block too.

    The block of the root are the text's last k entries. Where a block ends, a pass says what follows its last node and
    what follows the nodes of the next k − 1 depths below it, which it says of each depth alone.
    """

    def __init__(self, network: Falcon, given: DraftingInputs) -> None:
        sizes = network.sizes
        super().__init__(sizes.taps, given)
        self._network, self._k = network, sizes.block
        self._entries = TextEntries(given)
        self.take = self._entries.take
        self._rows = AttentionRows(sizes.kv_heads, sizes.head_dim)
        self._memory = network.lstm.empty(0)  # the LSTM's, after each entry of the text
        self._block_of: dict[int, int] = {}  # node that ends a block → block
        self._states = torch.empty(0)  # (blocks, k, d) what follows them
        self._after = torch.empty(0)  # (blocks, layers, 2, width) the LSTM's memory after them

    @torch.inference_mode()
    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        """Read what is new of the text, and its last block. There is none in a text of fewer than k + 1 tokens."""
        self._block_of = {}
        end = len(history) - 1
        if end < self._k or not self.given.complete(history):
            return False
        network = self._network
        for first, inputs, tokens in self._entries.unread(history, again=self._k):
            before = self._memory[first - 1] if first else network.lstm.empty()
            self._remember(first, network.lstm(network.entries(inputs, tokens), before))
            behind = first + len(inputs)
            rows = network.rows(self._memory[first:behind])
            _, keys, values = network.layer.before_attention(rows, torch.arange(first, behind))
            self._rows.write(first, keys, values)
            self._counted += 1
        first, seen = end - self._k, torch.ones(1, end, dtype=torch.bool)
        self._states = self._attended(first, self._memory[None, first:end], torch.arange(first, end), seen)
        self._after = self._memory[None, end - 1]
        self._block_of[ROOT] = 0
        return True

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """A pass where nodes of this depth end blocks; elsewhere the blocks above have said what follows."""
        behind = tree.depths[nodes[0]] % self._k
        ends = [self._above(tree, node, behind) for node in nodes]
        if unread := [node for node in ends if node not in self._block_of]:
            self._read_blocks(tree, unread)
        blocks = [self._block_of[node] for node in ends]
        some = list(dict.fromkeys(blocks))  # siblings have one block above them
        return self.given.guessed(rows_of(self._states[:, behind], some)).of([some.index(block) for block in blocks])

    def _read_blocks(self, tree: TokenTree, ends: Sequence[int]) -> None:
        """One pass for the blocks that end with these nodes of one depth; those above them were read."""
        network, k, text = self._network, self._k, len(self._entries)
        above = [self._block_of[self._above(tree, node, k)] for node in ends]
        tokens = self.given.tokens.of([tree.tokens[part] for node in ends for part in tree.path(node)[-k:]])
        entries = network.entries(rows_of(self._states, above), tokens.view(len(ends), k, -1))
        memory = network.lstm(entries, rows_of(self._after, above))
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
        self._counted += 1

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
        for _ in range(depths):
            node = tree.parents[node]
        return node
