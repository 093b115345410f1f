"""Selector: parallel heads, and scores of pairs of neighbouring tokens that say which of their guesses go together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.device_copy import to_host
from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.tree import ROOT, TokenTree
from specchat.models.cpu_kernels.hydra import NamedHead
from specchat.models.cpu_kernels.kernels import kernels_for
from specchat.models.cpu_kernels.linear import NativeLinear
from specchat.models.cpu_kernels.selector import NativeSelector
from specchat.models.draft_heads.drafting import Drafting, DraftingInputs, LastEntryAlone, TokenInputs
from specchat.models.draft_heads.head import DraftHead, Recipe, SharedWeights
from specchat.models.draft_heads.layers import by_depth, rms_normalize, with_mlp
from specchat.models.draft_heads.sizes import MOST_DEPTH, MOST_RANK, MlpSizes, size


@dataclass(frozen=True)
class SelectorSizes(MlpSizes):
    """Sizes of `selector`; `heads` tokens ahead are guessed, `rank` is the width of pairs."""

    heads: int = size(MOST_DEPTH, default=5)
    rank: int = size(MOST_RANK, default=64)


class Selector(DraftHead[SelectorSizes]):
    """Guesses the tokens at several depths at once, and adds to each guess how well it follows the guesses before it.

    One MLP makes a state of the target's states and the root's token; each depth has a residual block on that, whose
    logits do not depend on the tokens guessed before. The score of a token and the one before it is the product of two
    rows of `rank` numbers: one is made of its embedding, the other of that of the token before, the row before and the
    state. It is added to the logit, so that a tree is grown over the sums: a guess gets other children than its
    siblings do.

    Reference: after the pair scores between candidates of neighbouring places in DFlash 2's selector
    (llama.cpp, pull request 27342). Differs: parallel heads in the place of a block of diffusion, rows from
    embeddings that know the state and the tokens further back, and a tree grown best-first over the scores in the place
    of one chain.
    """

    recipe = Recipe(reads_back=False, steps=5)
    sizes_type = SelectorSizes

    def __init__(self, sizes: SelectorSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared)
        d = sizes.hidden
        self.token = nn.Linear(d, d, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Linear(d, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, d, bias=False)
        self.blocks = nn.Linear(d, sizes.heads * d, bias=False)
        self.pair = nn.Linear(d, 2 * sizes.rank, bias=False)
        self.gates = nn.Linear(d, sizes.heads * sizes.rank, bias=False)
        self.mix = nn.Parameter(torch.zeros(sizes.rank, sizes.rank))
        self._frequent: tuple[SharedWeights, Tensor] | None = None

    @property
    def added(self) -> tuple[Tensor, ...]:
        return self.down.weight, self.pair.weight

    def entries(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """(…, d) states that the heads begin with, from the outputs of `fused` and `of_tokens`."""
        return with_mlp(inputs + tokens, self.mlp_norm, self.gate_up, self.down, self.sizes.epsilon)

    def ahead(self, entries: Tensor) -> Tensor:
        """(…, heads, d) states of all depths, from (…, d) outputs of `entries`."""
        return by_depth(self.blocks, entries, self.sizes.epsilon)

    def gated(self, entries: Tensor) -> Tensor:
        """(…, heads, rank) what the state adds to the row of each depth, from (…, d) outputs of `entries`."""
        sizes = self.sizes
        gates: Tensor = self.gates(rms_normalize(entries, sizes.epsilon)).unflatten(-1, (sizes.heads, sizes.rank))
        return gates

    def pairs(self, embedded: Tensor) -> Tensor:
        """(…, 2 · rank) what a token is scored with as the first and as the second of a pair, from its embedding."""
        rows: Tensor = self.pair(rms_normalize(embedded, self.sizes.epsilon))
        return rows

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) input of the head, from (…, d) states or from what `states` gives, which has a row behind."""
        return super().normed(states[..., : self.sizes.hidden])

    def logits(self, states: Tensor) -> Tensor:
        shared, known = self.shared, self._frequent
        if known is None or known[0] is not shared:  # the embeddings stay as they are
            with torch.inference_mode(False), torch.no_grad():
                known = shared, rms_normalize(shared.embed(shared.tokens), self.sizes.epsilon)
            self._frequent = known
        second = self.pair(known[1])[:, self.sizes.rank :]
        return super().logits(states) + F.linear(states[..., self.sizes.hidden :], second)

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """(B, S − steps, d + rank) for each step; see `DraftNetwork.states`."""
        assert 1 <= steps <= self.sizes.heads, f"{self.sizes.heads} heads cannot guess {steps} tokens"
        anchors, embedded = tokens.shape[1] - steps, self.shared.embed(tokens)
        entries = self.entries(fused[:, :anchors], self.of_tokens(embedded[:, 1 : anchors + 1]))
        before, gates = self.pairs(embedded)[..., : self.sizes.rank], self.gated(entries)
        row, found = torch.zeros_like(gates[..., 0, :]), list[Tensor]()
        for step, state in enumerate(self.ahead(entries).unbind(-2)[:steps]):
            if step:
                row = F.silu(gates[..., step, :] + before[:, step + 1 : anchors + step + 1] + F.linear(row, self.mix))
            found.append(torch.cat([state, row], dim=-1))
        return found

    def drafting(self, given: DraftingInputs) -> SelectorDrafting:
        return SelectorDrafting(self, given)


CANDIDATES = 32
"""So many of the likeliest tokens of a depth can be guessed there: their pairs with the token before are scored."""


class SelectorDrafting(Drafting):
    """One call for a whole tree; then every node reads its depth's candidates beside the scores behind its token.

    Where the network runs in C, all of that is one call.
    """

    one_pass = True

    def __init__(self, network: Selector, given: DraftingInputs) -> None:
        sizes, reading = network.sizes, LastEntryAlone(network.entries, given)
        super().__init__(sizes.taps, given, reading)
        self.depth = sizes.heads
        self._network, self._reading = network, reading
        self._native: NativeSelector | None = None
        if isinstance(network.fuse, NativeLinear):  # on the target's threads, which have nothing else to do meanwhile
            self._native = NativeSelector(kernels_for(), given.threads, network, CANDIDATES)
        self._named: NamedHead | None = None
        self._added: list[int] = []  # tokens of the text that can be guessed
        self._last = 0  # position of the token before the root
        self._row_of: dict[int, int] = {}  # node → row
        # Without C: the guesses of every depth, what the state adds to its rows, the rows that were read.
        self._alone: Guessed | None = None
        self._gates = self._rows = np.zeros((1, sizes.rank), np.float32)
        self._mix = to_host(network.mix.detach().float())[0]
        self._pairs = TokenInputs(
            self._write, len(given.tokens.within([]).places), 2 * network.sizes.rank, network.shared.tokens.tolist()
        )

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        self._last = len(history) - 2
        return self._reading.begin(history)

    def compiled(self, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        return None if self._native is None else self._begin_in_c(self._native, tokens)

    def count_passes(self, count: int) -> None:
        """One, however many levels were scored."""
        super().count_passes(min(count, 1))

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        tokens, root = [tree.tokens[node] for node in nodes], nodes[0] == ROOT
        if root:
            self._row_of = {}
        behind = [-1] if root else [self._row_of[tree.parents[node]] for node in nodes]
        self._row_of.update(zip(nodes, itertools.count(len(self._row_of)), strict=False))
        if self._native is not None:
            return self._read_in_c(self._native, behind, tokens)
        alone = self._read_root() if root else self._alone
        assert alone is not None, "a tree was begun"
        base = alone.of([tree.depths[node] for node in nodes])
        base = replace(base, tokens=base.tokens[:, :CANDIDATES], logprobs=base.logprobs[:, :CANDIDATES])
        return base if root else self._behind(behind, tokens, tree.depths[nodes[0]], base)

    def _read_root(self) -> Guessed:
        entry = self._reading.root()
        gates = self._network.gated(entry)[0].float()
        self._alone, there = self.given.guessed_beside(self._network.ahead(entry).flatten(0, -2), gates)
        self._gates, self._rows = there[0], np.zeros_like(there[0][:1])
        return self._alone

    def _begin_in_c(self, native: NativeSelector, tokens: Sequence[int]) -> CompiledNetwork:
        """A tree begins in C, whose root is the first of these tokens; pairs of all of them may be asked for."""
        given = self.given
        named = given.head_for_c(self._named)
        if named is not self._named or len(tokens) > 1:
            self._named, self._added = named, named.tokens[len(self._network.shared.tokens) :].tolist()
            self._pairs.within([*self._added, *tokens])
        inputs, pairs = given.tokens.within(tokens[:1]), self._pairs.within(tokens)
        return native.begin(named, given.text.for_c(self._last), inputs, pairs)

    def _read_in_c(self, native: NativeSelector, behind: Sequence[int], tokens: Sequence[int]) -> Guessed:
        if behind[0] < 0:
            self._begin_in_c(native, tokens)
            self.count_passes(1)
        else:
            self._pairs.within([*self._added, *tokens])
        return native.read(behind, tokens)

    def _behind(self, behind: Sequence[int], tokens: Sequence[int], depth: int, base: Guessed) -> Guessed:
        """The guesses after these tokens of a depth: its candidates in the order of the sums."""
        rank, candidates = self._network.sizes.rank, base.tokens[0]
        rows = self._gates[depth] + self._pairs.of(tokens)[:, :rank].numpy() + self._rows[list(behind)] @ self._mix.T
        rows = rows / (1 + np.exp(-rows))
        self._rows = np.concatenate([self._rows, rows])
        scores = rows @ self._pairs.of(candidates.tolist())[:, rank:].numpy().T
        alone = base.logprobs
        # Tokens that are no candidates keep their mass. Logits and their sum have 32 bits, as compiled code takes them.
        gained = (np.exp(alone + scores) - np.exp(alone)).sum(axis=1)
        total = (base.logsumexp + np.log1p(np.maximum(gained, 1e-9 - 1))).astype(np.float32)
        together = (alone + base.logsumexp[:, None] + scores).astype(np.float32).astype(np.float64)
        order = np.argsort(-together, axis=1, kind="stable")
        logprobs = np.take_along_axis(together, order, axis=1) - total[:, None]

        def logits() -> Tensor:
            place = {token: at for at, token in enumerate(base.possible.tolist())}
            whole = base.logits.clone()
            whole[:, [place[token] for token in candidates.tolist()]] += torch.from_numpy(scores).to(whole)
            return whole

        return replace(base, tokens=candidates[order], logprobs=logprobs, logsumexp=total, compute_logits=logits)

    @torch.inference_mode()
    def _write(self, tokens: Sequence[int], to: Tensor) -> None:
        """Rows of pairs for tokens, on the host."""
        network = self._network
        embedded = network.shared.embed(torch.tensor(tokens)).to(network.norm)
        to.copy_(torch.from_numpy(to_host(network.pairs(embedded).float())[0]))
