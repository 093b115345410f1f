"""Selector: parallel heads, and scores of pairs of neighbouring tokens that say which of their guesses go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.core.device_copy import to_host
from specchat.core.drafting_networks import Guessed
from specchat.core.tree import ROOT, TokenTree
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads.drafting import DraftingInputs, LastEntryAlone, ParallelDrafting, TokenInputs
from specchat.models.draft_heads.head import DraftHead, Recipe, SharedWeights
from specchat.models.draft_heads.layers import rms_normalize
from specchat.models.draft_heads.sizes import MOST_DEPTH, MOST_INNER, MOST_RANK, Sizes, multiple_of_32, size


@dataclass(frozen=True)
class SelectorSizes(Sizes):
    """Sizes of `selector`; `heads` tokens ahead are guessed, `inner` is the width of the MLP, `rank` that of pairs."""

    inner: int = size(MOST_INNER, default=384)
    heads: int = size(MOST_DEPTH, default=5)
    rank: int = size(MOST_RANK, default=64)


class Selector(DraftHead[SelectorSizes]):
    """Guesses the tokens at several depths at once, and adds to each guess how well it follows the guess before it.

    One MLP makes a state of the target's states and the root's token; each depth has a residual block on that, whose
    logits do not depend on the tokens guessed before. The pair score of a token and the one before it is the product
    of two rows of `rank` numbers, each made of a token's embedding. It is added to the logit, so that a tree is grown
    over the sums: a guess gets other children than its siblings do.

    Reference: after the pair scores between candidates of neighbouring places in DFlash 2's selector
    (llama.cpp, pull request 27342). Differs: parallel heads in the place of a block of diffusion, rows from
    embeddings, and a tree grown best-first over the scores in the place of one chain.
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

    @classmethod
    def sizes_for(cls, shape: Shape, taps: tuple[int, ...]) -> SelectorSizes:
        return SelectorSizes(shape.hidden, taps, epsilon=shape.epsilon, inner=multiple_of_32(2 * shape.hidden / 3))

    @property
    def added(self) -> tuple[Tensor, ...]:
        return self.down.weight, self.pair.weight

    @property
    def token_product(self) -> nn.Module:
        return self.token

    def entries(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """(…, d) states that the heads begin with, from the outputs of `fused` and `of_tokens`."""
        states = inputs + tokens
        gate, up = self.gate_up(rms_normalize(states, self.sizes.epsilon) * self.mlp_norm).chunk(2, dim=-1)
        entries: Tensor = states + self.down(F.silu(gate) * up)
        return entries

    def ahead(self, entries: Tensor) -> Tensor:
        """(…, heads, d) states of all depths, from (…, d) outputs of `entries`."""
        sizes = self.sizes
        blocks = self.blocks(rms_normalize(entries, sizes.epsilon)).unflatten(-1, (sizes.heads, sizes.hidden))
        states: Tensor = entries.unsqueeze(-2) + F.silu(blocks)
        return states

    def pairs(self, embedded: Tensor) -> Tensor:
        """(…, 2 · rank) what a token is scored with as the first and as the second of a pair, from its embedding."""
        rows: Tensor = self.pair(rms_normalize(embedded, self.sizes.epsilon))
        return rows

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) input of the head, from (…, d) states or from what `states` gives, which has a pair's row behind."""
        return super().normed(states[..., : self.sizes.hidden])

    def logits(self, states: Tensor) -> Tensor:
        before, shared = states[..., self.sizes.hidden :], self.shared
        return super().logits(states) + F.linear(before, self.pairs(shared.embed(shared.tokens))[:, self.sizes.rank :])

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """(B, S − steps, d + rank) for each step; see `DraftNetwork.states`."""
        assert 1 <= steps <= self.sizes.heads, f"{self.sizes.heads} heads cannot guess {steps} tokens"
        anchors, embedded = tokens.shape[1] - steps, self.shared.embed(tokens)
        entries = self.entries(fused[:, :anchors], self.of_tokens(embedded[:, 1 : anchors + 1]))
        before = self.pairs(embedded)[..., : self.sizes.rank]
        found = list[Tensor]()
        for step, state in enumerate(self.ahead(entries).unbind(-2)[:steps], 1):
            row = before[:, step : anchors + step]
            found.append(torch.cat([state, torch.zeros_like(row) if step == 1 else row], dim=-1))
        return found

    def drafting(self, given: DraftingInputs) -> SelectorDrafting:
        return SelectorDrafting(self, given)


class SelectorDrafting(ParallelDrafting):
    """One call for a whole tree; then every node reads its depth's candidates beside the scores behind its token."""

    def __init__(self, network: Selector, given: DraftingInputs) -> None:
        sizes, reading = network.sizes, LastEntryAlone(network.entries, given)
        super().__init__(sizes.taps, sizes.heads, network.ahead, reading, given)
        self._network = network
        self._pairs = TokenInputs(
            self._write, len(given.tokens.within([]).places), 2 * network.sizes.rank, network.shared.tokens.tolist()
        )

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        base = super().read(tree, nodes)
        return base if nodes[0] == ROOT else self._behind([tree.tokens[node] for node in nodes], base)

    def _behind(self, tokens: Sequence[int], base: Guessed) -> Guessed:
        """The guesses after these tokens: the candidates of their depth in the order of the sums."""
        rank, candidates = self._network.sizes.rank, base.tokens[0]
        first = self._pairs.of(tokens)[:, :rank].numpy()
        scores = first @ self._pairs.of(candidates.tolist())[:, rank:].numpy().T
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
