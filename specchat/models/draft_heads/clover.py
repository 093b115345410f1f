"""Clover: heads in a row, with a running state that takes in every token that is guessed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.core.device_copy import rows_of
from specchat.core.drafting_networks import Guessed
from specchat.core.tree import ROOT, TokenTree
from specchat.models.draft_heads.drafting import Drafting, DraftingInputs, Over, WholeText
from specchat.models.draft_heads.head import DraftHead, Recipe, SharedWeights
from specchat.models.draft_heads.layers import DecoderLayer, rms_normalize
from specchat.models.draft_heads.sizes import LayerSizes


@dataclass(frozen=True)
class CloverSizes(LayerSizes):
    @property
    def token_heads(self) -> int:
        """Heads of the attention to tokens: as many as that to the text has, where they divide the width."""
        return math.gcd(self.hidden, self.heads)


class TokenAttention(nn.Module):
    """Attention of a state to one token: each head adds the token's value as far as its key lies along the query.

    With a single key a softmax would be 1 whatever the query, so the weight is the cosine of query and key.
    """

    def __init__(self, hidden: int, heads: int, epsilon: float) -> None:
        """`heads` divides the width `hidden`."""
        super().__init__()
        self._heads, self._epsilon = heads, epsilon
        self.state_norm = nn.Parameter(torch.ones(hidden))
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.kv = nn.Linear(hidden, 2 * hidden, bias=False)

    def forward(self, states: Tensor, tokens: Tensor) -> Tensor:
        """(…, d) states with the tokens (…, d) added; a token of zeros adds nothing."""
        queries = self.q(rms_normalize(states, self._epsilon) * self.state_norm).unflatten(-1, (self._heads, -1))
        keys, values = self.kv(tokens).unflatten(-1, (2 * self._heads, -1)).chunk(2, dim=-2)
        weights = F.cosine_similarity(queries, keys, dim=-1).unsqueeze(-1)
        added: Tensor = (weights * values).flatten(-2)
        return states + added


class Clover(DraftHead[CloverSizes]):
    """Guesses token after token from a running state, to which each token that was guessed is added by attention.

    The target's state at every token of the text takes in the token that follows, and a decoder layer, the augmenting
    block, attends to the text. Its output at the last entry is the running state: a head guesses from it. A deeper
    head guesses from the running state after it has taken in the token guessed before, and from that token itself.

    Reference: Xiao et al., Clover: Regressive Lightweight Speculative Decoding with Sequential Knowledge,
    arXiv:2405.00263, with what the authors' program XiaoBin1992/clover does: the cosine as the attention's weight, the
    root's token before the augmenting block, and a head that sees the token beside the state. Differs: states of
    several layers of the target go in, one head serves all depths from the second on, so that there is no deepest, and
    the augmenting block's MLP is narrow (two thirds of the width).
    """

    recipe = Recipe(reads_back=True)
    sizes_type = CloverSizes

    def __init__(self, sizes: CloverSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared, token_norm=True)
        d = sizes.hidden
        self.root = TokenAttention(d, sizes.token_heads, sizes.epsilon)
        self.augmenting = DecoderLayer(sizes)
        self.guessed = TokenAttention(d, sizes.token_heads, sizes.epsilon)
        self.first = nn.Linear(d, d, bias=False)
        self.later = nn.Linear(2 * d, d, bias=False)

    @property
    def added(self) -> tuple[Tensor, ...]:
        return self.augmenting.added

    def entries(self, inputs: Tensor, tokens: Tensor, over: Over) -> Tensor:
        """(…, d) running states behind each entry of a text; see `Amphista.entries`."""
        return over(self.augmenting, self.root(inputs, tokens))

    def at_root(self, running: Tensor) -> Tensor:
        """(…, d) states of the first head, from (…, d) outputs of `entries`."""
        states: Tensor = running + self.first(rms_normalize(running, self.sizes.epsilon))
        return states

    def step(self, running: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(…, d) running states with the tokens that were guessed, and (…, d) states of their head.

        Args:
            tokens: (…, d) outputs of `of_tokens`.
        """
        running = self.guessed(running, tokens)
        pairs = torch.cat([rms_normalize(running, self.sizes.epsilon), tokens], dim=-1)
        return running, running + self.later(pairs)

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        anchors = tokens.shape[1] - steps
        taken = self.of_tokens(self.shared.embed(tokens))
        running = self.entries(fused[:, :anchors], taken[:, 1 : anchors + 1], DecoderLayer.over_text)
        found = [self.at_root(running)]
        for step in range(2, steps + 1):
            running, states = self.step(running, taken[:, step : anchors + step])
            found.append(states)
        return found

    def drafting(self, given: DraftingInputs) -> CloverDrafting:
        return CloverDrafting(self, given)


class CloverDrafting(Drafting):
    """Entries of the text are read when a tree begins, then one step per depth."""

    def __init__(self, network: Clover, given: DraftingInputs) -> None:
        self._network, self._reading = network, WholeText((network.augmenting,), network.entries, given)
        super().__init__(network.sizes.taps, given, self._reading)
        self._running = torch.empty(0)
        self._row_of: dict[int, int] = {}  # node → row of its running state

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """One step for nodes of one depth; the text was read as far as the root."""
        if nodes[0] == ROOT:
            self._running, self._row_of = self._reading.root(), {ROOT: 0}
            return self.given.guessed(self._network.at_root(self._running))
        parents = [self._row_of[tree.parents[node]] for node in nodes]
        tokens = self.given.tokens.of([tree.tokens[node] for node in nodes])
        running, states = self._network.step(rows_of(self._running, parents), tokens)
        self._counted += 1
        self._row_of.update(zip(nodes, range(len(self._running), len(self._running) + len(nodes)), strict=True))
        self._running = torch.cat([self._running, running])
        return self.given.guessed(states)
