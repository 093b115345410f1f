"""A semi-autoregressive network: every pass reads a block of entries and guesses the block that follows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specchat.models.draft_heads.decoder_layer import DecoderLayer
from specchat.models.draft_heads.group_attention import KeysValues, attend_in_groups
from specchat.models.draft_heads.lstm import Lstm
from specchat.models.draft_heads.shared_weights import SharedWeights, rms_normalize
from specchat.models.draft_heads.sizes import FalconSizes

_LSTM_LAYERS = 2


class Falcon(nn.Module):
    """Guesses k tokens in a pass, from the k entries before them; its own states and the guesses are the next k.

    An entry pairs the fused states of the target at one token with the embedding of the token that follows, as with
    `eagle`. Entries go through an LSTM, then through a decoder layer with relaxed causal attention: an entry sees the
    text and all entries of its own block, those behind it too. What the layer makes of entry s stands for the target's
    state at token s + k. Within a block no guess depends on another; between blocks they do.

    Reference: Gao et al., Falcon: Faster and Parallel Inference of Large Language Models through Enhanced
    Semi-Autoregressive Drafting and Custom-Designed Decoding Tree, arXiv:2412.12639. Differs: states of several layers
    go in, the LSTM is narrower than the states, both its layers are heard (with the second alone it learnt slower),
    blocks end at every place of a text while learning, not at each k-th, a chain goes on with its own states there,
    and no noise is added to them. Trees are those of any policy.
    """

    def __init__(self, sizes: FalconSizes, shared: SharedWeights) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = shared
        d = sizes.hidden
        self.fuse = nn.Linear(len(sizes.taps) * d, d, bias=False)
        self.token_norm = nn.Parameter(torch.ones(d))
        self.state_norm = nn.Parameter(torch.ones(d))
        self.lstm = Lstm(2 * d, sizes.width, _LSTM_LAYERS)
        self.widen = nn.Linear(sizes.width, d, bias=False)
        self.layer = DecoderLayer(sizes)
        self.norm = nn.Parameter(torch.ones(d))

    def fused(self, features: Tensor) -> Tensor:
        """(…, d) from (…, taps, d) states of the target."""
        fused: Tensor = self.fuse(rms_normalize(features, self.sizes.epsilon).flatten(-2))
        return fused

    def of_tokens(self, embedded: Tensor) -> Tensor:
        """(…, d) what an entry takes of the embeddings (…, d) of tokens."""
        return rms_normalize(embedded, self.sizes.epsilon) * self.token_norm

    def entries(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """(…, 2 · d) from (…, d) fused states, or states of the pass before, and (…, d) what `of_tokens` gives."""
        return torch.cat([tokens, rms_normalize(inputs, self.sizes.epsilon) * self.state_norm], dim=-1)

    def rows(self, memory: Tensor) -> Tensor:
        """(…, d) what the layer takes of entries, from (…, layers, 2, width) the LSTM's memory after them."""
        said = memory[..., 0, :].sum(dim=-2)
        widened: Tensor = self.widen(rms_normalize(said, self.sizes.epsilon))
        return widened

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows, for each of the shared tokens."""
        return self.shared.logits(self.normed(states))

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) what the head is multiplied with."""
        return rms_normalize(states, self.sizes.epsilon) * self.norm

    @property
    def block(self) -> int:
        """k, so many tokens are guessed in a pass."""
        return self.sizes.block

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """What `unroll` takes the logits of: (B, S − steps, d) for each step; from (B, S, d) what `fused` gives.

        A place before which there are fewer than k entries takes the first of them several times; nothing is drafted
        there.
        """
        return self.glanced(fused, tokens, steps, None)

    def glanced(self, fused: Tensor, tokens: Tensor, steps: int, shown: Tensor | None) -> list[Tensor]:
        """As `states`, where some entries of every place's first block are replaced by those k further on.

        Args:
            shown: (B, S − steps, k) bool, which; None: none. See `glancing`.
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

    def unroll(self, features: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """Logits of every step at every place of some texts; see `Hydra.unroll`. Differentiable."""
        return [self.logits(states) for states in self.states(self.fused(features), tokens, steps)]
