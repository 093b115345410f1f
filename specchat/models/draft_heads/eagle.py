"""EAGLE: one decoder layer on the target's states, which attends to the text and to its own guesses.

The same network runs published EAGLE-3 checkpoints, which `models.published_drafter` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.core.device_copy import rows_of
from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.tree import ROOT, TokenTree
from specchat.models.draft_heads.drafting import Drafting, DraftingInputs, RootReading
from specchat.models.draft_heads.head import OWN_EMBED, OWN_HEAD, TOKENS, DraftHead, Recipe, SharedWeights
from specchat.models.draft_heads.layers import (
    AttentionRows,
    KeysValues,
    Rotation,
    attend_in_groups,
    rms_normalize,
    side_by_side,
)
from specchat.models.draft_heads.sizes import MOST_INNER, LayerSizes, NetworkSizes, size

FREQUENCIES = "frequencies"
"""A tensor that only published networks have: the rotation's angles."""


@dataclass(frozen=True)
class EagleSizes(LayerSizes):
    """Sizes of `eagle`. The defaults are those of our own training.

    Args:
        unit_taps: 1 where every tapped state is brought to a mean square of 1 before the taps are fused, 2 where they
            are all together, else 0.
        norm_residual: 1 where the attention's output is added to the normed state, 0 where to the state itself.
        norm_fed_back: 1 where a later step takes the input of the head, 0 where the layer's output itself.
        sampled: width of the space in which tokens gate states in front of the layer; 0 where both go in side by side.
        parted: 1 where the layer's output has two parts of d: one is brought near the target's state and fed back, the
            other goes to the head. 0 where one part does both.
    """

    mlp_width: ClassVar[float] = 8 / 3

    unit_taps: int = size(2, least=0, default=1)
    norm_residual: int = size(1, least=0, default=0)
    norm_fed_back: int = size(1, least=0, default=0)
    sampled: int = size(MOST_INNER, least=0, default=0)
    parted: int = size(1, least=0, default=0)

    def of_form(self, form: str) -> EagleSizes:
        """The same sizes in a form of `training.limits.FORMS`: `fs` samples states, `fspad` parts the output, too."""
        return replace(self, sampled=2 * self.hidden if form in ("fs", "fspad") else 0, parted=int(form == "fspad"))


class Eagle(DraftHead[LayerSizes]):
    """Guesses token after token with one decoder layer, whose own output stands in for the target's states.

    An entry of its text pairs the fused states of the target at one token with the embedding of the token that
    follows. Drafting goes on from there with pairs of its own output and the token guessed. Both halves are normed
    and go into queries, keys and values side by side.

    Reference: Li et al., EAGLE-3, arXiv:2503.01840; the norms of taps and of what is fed back are those of EAGLE-3.1,
    arXiv:2605.09992. Differs in what we train ourselves: every tapped state is normed
    before the taps are fused (`unit_taps`), and the head is the target's. The loss has EAGLE's distance of states too,
    which EAGLE-3 dropped, and a chain counts only as long as its guesses were right or nearly so (see `chain_loss`).

    With `sampled` the embedding of the token gates the state in a wider space, down(up(state) · silu(gate(token))), and
    the layer reads that in place of both side by side. With `parted` one part of its output is compared with the
    target's state and fed back, and logits come from the other: the distance of states pulls at no weight that only
    logits depend on. Reference: Gui et al., FSPAD, arXiv:2408.15562. Differs: what is said there of EAGLE-2's layer is
    done here in EAGLE-3's; which part of its last product is aligned is our reading of it.
    """

    recipe = Recipe(reads_back=True)
    sizes_type: ClassVar[type[LayerSizes]] = EagleSizes

    def __init__(self, sizes: LayerSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared, token_norm=True)
        published = sizes if isinstance(sizes, EagleSizes) else None
        self._unit_taps = 1 if published is None else published.unit_taps
        self._norm_fed_back = published is not None and bool(published.norm_fed_back)
        self._norm_residual = published is not None and bool(published.norm_residual)
        self._sampled = 0 if published is None else published.sampled
        self._parts = 1 if published is None else 1 + published.parted
        d, queries = sizes.hidden, sizes.heads * sizes.head_dim
        self.state_norm = nn.Parameter(torch.ones(d))
        if self._sampled:
            self.sample_up = nn.Linear(d, self._sampled, bias=False)
            self.sample_gate = nn.Linear(d, self._sampled, bias=False)
            self.sample_down = nn.Linear(self._sampled, d, bias=False)
        self.qkv = nn.Linear(d if self._sampled else 2 * d, queries + 2 * sizes.kv_heads * sizes.head_dim, bias=False)
        self.o = nn.Linear(queries, d, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Linear(d, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, self._parts * d, bias=False)
        self.rotation = Rotation(sizes.theta, sizes.head_dim)

    @property
    def added(self) -> tuple[Tensor, ...]:
        return self.o.weight, self.down.weight

    @classmethod
    def own_shapes(cls, sizes: NetworkSizes, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        assert isinstance(sizes, LayerSizes)
        rows = {name: shape[0] for name, shape in shapes.items() if shape}
        wanted = {
            OWN_HEAD: (rows.get(TOKENS, 0), sizes.hidden),
            OWN_EMBED: (rows.get(OWN_EMBED, 0), sizes.hidden),
            FREQUENCIES: (sizes.head_dim // 2,),
        }
        return {name: shape for name, shape in wanted.items() if name in shapes}

    def take_own_(self, tensors: Mapping[str, Tensor]) -> None:
        if FREQUENCIES in tensors:
            self.rotation.frequencies = tensors[FREQUENCIES]

    def fused(self, features: Tensor) -> Tensor:
        taken = rms_normalize(features, self.sizes.epsilon) if self._unit_taps == 1 else features
        together = taken.flatten(-2)
        fused: Tensor = self.fuse(rms_normalize(together, self.sizes.epsilon) if self._unit_taps == 2 else together)
        return fused

    def fed_back(self, states: Tensor) -> Tensor:
        """(…, d) input of a later step, from (…, parts · d) outputs of the layer."""
        return self.aligned(states) if self._norm_fed_back else states[..., : self.sizes.hidden]

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) input of the head, from (…, parts · d) outputs of the layer."""
        return super().normed(self.for_head(states))

    def for_head(self, states: Tensor) -> Tensor:
        """(…, d) the part of (…, parts · d) outputs of the layer that logits come from, the last."""
        return states[..., -self.sizes.hidden :].contiguous()

    def aligned(self, states: Tensor) -> Tensor:
        """(…, d) what is compared with the target's state: the head's input, or the part that is not for the head."""
        if self._parts == 1:
            return self.normed(states)
        return rms_normalize(states[..., : self.sizes.hidden], self.sizes.epsilon)

    def before_attention(
        self, inputs: Tensor, tokens: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The residual that attention's output is added to, (…, A, d); queries, keys and values, (…, A, heads,
        head_dim), rotated.

        Args:
            inputs: (…, A, d) fused states, or states of the step before.
            tokens: (…, A, d) outputs of `of_tokens` for the tokens that follow them.
            positions: (A,) of the entries.
        """
        sizes = self.sizes
        normed = rms_normalize(inputs, sizes.epsilon) * self.state_norm
        if self._sampled:
            inputs = self.sample_down(self.sample_up(normed) * F.silu(self.sample_gate(tokens)))
            pairs = rms_normalize(inputs, sizes.epsilon)
        else:
            pairs = torch.cat([tokens, normed], dim=-1)
        heads = self.qkv(pairs).unflatten(-1, (sizes.heads + 2 * sizes.kv_heads, sizes.head_dim))
        rotating = sizes.heads + sizes.kv_heads
        rotated = self.rotation(heads[..., :rotating, :], positions)
        residual = normed if self._norm_residual else inputs
        return residual, rotated[..., : sizes.heads, :], rotated[..., sizes.heads :, :], heads[..., rotating:, :]

    def after_attention(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """(…, parts · d) the layer's output, from (…, d) and (…, heads · head_dim)."""
        states = residual + self.o(mixed)
        gate, up = self.gate_up(rms_normalize(states, self.sizes.epsilon) * self.mlp_norm).chunk(2, dim=-1)
        after: Tensor = torch.cat([states] * self._parts, dim=-1) + self.down(F.silu(gate) * up)
        return after

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        anchors = tokens.shape[1] - steps
        taken = self.of_tokens(self.shared.embed(tokens))
        inputs, found, before = fused[:, :anchors], list[Tensor](), list[KeysValues]()
        for step in range(1, steps + 1):
            found.append(self._step(inputs, taken[:, step : anchors + step], before))
            inputs = self.fed_back(found[-1])
        return found

    def _step(self, inputs: Tensor, tokens: Tensor, before: list[KeysValues]) -> Tensor:
        """(B, A, d) one step at every place: each sees the text's entries up to its own, then its own guesses.

        Args:
            before: of the earlier steps, the first of which is the text; this one is appended.
        """
        first, places = len(before), inputs.shape[1]
        positions = torch.arange(first, first + places, device=inputs.device)
        residual, queries, keys, values = self.before_attention(inputs, tokens, positions)
        before.append(KeysValues(keys, values))
        text, *guesses = before
        own = side_by_side(guesses, text)
        sees = torch.ones(1, first, dtype=torch.bool, device=inputs.device)
        return self.after_attention(residual, attend_in_groups(queries[:, :, None], text, own, sees)[:, :, 0])

    def drafting(self, given: DraftingInputs) -> Drafting:
        return EagleDrafting(self, given)


class LayerReading(RootReading):
    """The entries of a text that the layer has read. Rows behind them are written over when more of it is read."""

    def __init__(self, layer: Eagle, given: DraftingInputs, masks: tuple[Tensor, Tensor] | None = None) -> None:
        """Nothing read yet.

        Args:
            masks: (m, d) twice, inputs of `Eagle.before_attention` of rows that are read behind the last entry; each
                sees all before it.
        """
        super().__init__(given)
        self._masks, self._layer = masks, layer
        self._rows = AttentionRows(layer.sizes.kv_heads, layer.sizes.head_dim)

    @property
    def entries(self) -> int:
        return len(self._entries)

    @torch.inference_mode()
    def begin(self, history: Sequence[int]) -> bool:
        """Read what is new of the text, and the last entry in any case: its state is where drafting begins."""
        if not self._given.complete(history):
            return False
        for first, inputs, tokens in self._entries.unread(history):
            own = len(inputs)
            if self._masks is not None and first + own == len(history) - 1:
                inputs, tokens = (torch.cat(rows) for rows in zip((inputs, tokens), self._masks, strict=True))
            count = len(inputs)
            seen = torch.ones(count, first + count, dtype=torch.bool).tril(first)
            states = self.step(inputs, tokens, torch.arange(first, first + count), first, seen)
            # (1 + m, d) of the last entry and the masks
            self._root = states[own - 1 :]
        return True

    def step(self, inputs: Tensor, tokens: Tensor, positions: Tensor, place: int, seen: Tensor) -> Tensor:
        """(n, d) states of rows that are written from `place` on: one pass of the layer.

        Args:
            inputs: (n, d) fused states of the target, or states of this layer.
            tokens: (n, d) outputs of `Eagle.of_tokens` for those that follow them.
            positions: (n,), on the host.
            seen: (n, place + n) bool, on the host, what each row attends to.
        """
        residual, queries, keys, values = self._layer.before_attention(inputs, tokens, positions)
        self.passes += 1
        return self._layer.after_attention(residual, self._rows.attend(place, queries, keys, values, seen))


class EagleDrafting(Drafting):
    """Entries of the text are read when a tree begins, nodes depth by depth.

    Nodes are written behind the text's entries and are forgotten with their tree: once their tokens are part of the
    text they are read again, from the target's own states.
    """

    def __init__(self, network: Eagle, given: DraftingInputs) -> None:
        self._reading, self._fed_back = LayerReading(network, given), network.fed_back
        self._for_head = network.for_head
        super().__init__(network.sizes.taps, given, self._reading)
        self._row_of: dict[int, int] = {}  # nodes below the root → row behind the entries
        self._states = torch.empty(0)

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        self._row_of = {}
        return super().begin(history)

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """One step for nodes of one depth; the root's is done."""
        if nodes[0] == ROOT:
            return self.given.guessed(self._for_head(self._reading.root()))
        entries, first = self._reading.entries, len(self._row_of)
        self._row_of.update(zip(nodes, range(first, first + len(nodes)), strict=True))
        seen = torch.zeros(len(nodes), entries + len(self._row_of), dtype=torch.bool)
        seen[:, :entries] = True
        for row, node in enumerate(nodes):
            seen[row, [entries + self._row_of[above] for above in tree.path(node)]] = True
        parents = [self._row_of[tree.parents[node]] + 1 if tree.parents[node] != ROOT else 0 for node in nodes]
        before = self._reading.root() if first == 0 else self._states
        tokens = self.given.tokens.of([tree.tokens[node] for node in nodes])
        positions = torch.full((len(nodes),), entries - 1 + tree.depths[nodes[0]])
        states = self._reading.step(self._fed_back(rows_of(before, parents)), tokens, positions, entries + first, seen)
        self._states = torch.cat([before, states])
        return self.given.guessed(self._for_head(states))
