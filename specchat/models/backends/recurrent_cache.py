"""States of recurrent layers over a token tree: gated delta nets, Mamba-2 and short convolutions.

Both kinds of recurrence are one: a matrix S, decayed by every token and then added to,

    S_v = exp(g_v) S_parent + k_v ⊗ u_v,    output_v = q_v S_v,

so that over a tree, with G_v the sum of g on the path to v (STree, arXiv 2505.14969),

    output_v = exp(G_v) q_v S_0 + Σ_{u above or at v} exp(G_v − G_u) (q_v · k_u) u_u.

Mamba-2 reads g, k, u and q from its input. A gated delta net adds what differs from what S holds for the key already,
u_v = β_v (v_v − exp(g_v) k_v S_parent), so that its u are the solution of one triangular system for all nodes. No state
is kept for a node. What is kept are g, k, u and the inputs of the convolution, and the state after an accepted path is
a sum over it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.record import record
from specchat.models.decoder.cache_rows import PassPlan
from specchat.models.decoder.kv_cache import KVCache

BORDERS = 8
"""Ends of prompts at which states are kept, so that an edit or a branch need not be read from the beginning."""

_FLOAT = torch.float32


@record
class LayerSizes:
    """One recurrent layer's numbers: those of its convolution's inputs, and of its state.

    Args:
        channels: of the convolution.
        kernel: tokens that it looks at.
        heads, keys, values: the state is (heads, keys, values) float32; 0 heads where there is none.
        element: bytes of one of the convolution's inputs.
    """

    channels: int
    kernel: int
    heads: int
    keys: int
    values: int
    element: int

    @property
    def state_bytes(self) -> int:
        return 4 * self.heads * self.keys * self.values + self.element * self.channels * (self.kernel - 1)

    @property
    def row_bytes(self) -> int:
        """Of what is kept for a node of a tree."""
        return 4 * self.heads * (self.keys + self.values + 3) + self.element * self.channels

    def pass_bytes(self, rows: int) -> int:
        """Of what is there for a moment while a pass of so many rows is in the layer."""
        return 4 * (3 * self.heads * rows * rows + 2 * rows * self.channels * self.kernel)


@record
class _State:
    """One layer after some text: (channels, kernel − 1) last inputs, (heads, keys, values) state; never written to."""

    last: Tensor
    memory: Tensor | None


@record
class _Rows:
    """One layer's rows behind that text.

    Args:
        inputs: (channels, n) of the convolution.
        decay: (n, heads) float32, logarithm of each row's decay.
        total: (n, heads) float64, its sum over the path: differences of long sums count.
        keys, values: (n, heads, …) float32 k and u.
    """

    inputs: Tensor
    decay: Tensor
    total: Tensor
    keys: Tensor
    values: Tensor

    def first(self, rows: int) -> _Rows:
        return _Rows(self.inputs[:, :rows], self.decay[:rows], self.total[:rows], self.keys[:rows], self.values[:rows])


class RecurrentCache(KVCache):
    """Rows of attention, and for each recurrent layer the state after the text and what the rows behind it add.

    States are never changed in place, so that caches share them.
    """

    keeps_states = True

    def __init__(
        self,
        attends: Collection[int],
        recurrent: Mapping[int, LayerSizes],
        max_rows: int,
        beside: KVCache | None = None,
    ) -> None:
        """Empty, for one text.

        Args:
            attends: numbers of the layers that keep keys and values.
            recurrent: for each layer that keeps a state, its sizes.
            beside: as `KVCache` takes it.
        """
        super().__init__(attends, max_rows, beside=beside)
        self.recurrent = recurrent
        self._states: Mapping[int, _State] = {}  # after the text's first `_tokens`, which have `_held` rows
        self._tokens = self._held = 0
        self._rows: dict[int, _Rows] = {}
        self._borders: dict[int, Mapping[int, _State]] = {}  # by tokens, oldest first
        self._text_was_read = False
        self._seen = torch.empty(0, 0, dtype=torch.bool)  # (rows of the pass, rows behind the text)
        self._inputs: Tensor | None = None  # of the convolution that is computed now

    def begin(self, plan: PassPlan) -> None:
        """The next pass has these rows."""
        self.write_at(plan.start)
        before = plan.start - self._held
        self._rows = {layer: rows.first(before) for layer, rows in self._rows.items()} if before else {}
        self._seen = plan.mask[:, self._held :]

    def text_read(self, rows: int) -> None:
        """The pass is done, and all its rows were text."""
        self._advance(range(rows))
        self._text_was_read = True

    # What transformers' layers ask of a cache. They are told that nothing is there, and their functions for the
    # convolution and the recurrence are those below.

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def is_recording_past(self, layer_idx: int) -> bool:
        return True

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, **_: object) -> Tensor:
        return conv_states

    def update_recurrent_state(self, recurrent_states: Tensor | None, layer_idx: int, **_: object) -> None:
        return None

    def functions(self, layer: int) -> dict[str, Any]:
        """What one layer calls by these names, over this cache."""

        def causal_conv1d_fn(
            hidden_states: Tensor, weight: Tensor, bias: Any = None, activation: Any = None, **_: Any
        ) -> Tensor:
            return self._convolve(layer, hidden_states, weight, bias, activation)

        def torch_chunk_gated_delta_rule(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            g: Tensor,
            beta: Tensor,
            use_qk_l2norm_in_kernel: bool = False,
            **_: Any,
        ) -> tuple[Tensor, None]:
            each = value.shape[2] // key.shape[2]
            q, k = (of.repeat_interleave(each, dim=2)[0].to(_FLOAT) for of in (query, key))
            if use_qk_l2norm_in_kernel:
                q, k = (of * torch.rsqrt((of * of).sum(-1, keepdim=True) + 1e-6) for of in (q, k))
            q = q / q.shape[-1] ** 0.5
            out = self._scan(layer, q, k, value[0].to(_FLOAT), g[0].to(_FLOAT), beta[0].to(_FLOAT))
            return out[None].to(value.dtype), None

        def mamba2_chunk_scan(
            hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any = None, dt_bias: Any = None,
            dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, float("inf")), **_: Any,
        ) -> tuple[Tensor, None]:  # fmt: skip
            steps = dt if dt_bias is None else dt + dt_bias
            steps = (F.softplus(steps) if dt_softplus else steps).clamp(*dt_limit)[0].to(_FLOAT)
            states = hidden_states[0].to(_FLOAT)
            each = states.shape[1] // B.shape[2]
            k, q = (of[0].to(_FLOAT).repeat_interleave(each, dim=1) for of in (B, C))
            out = self._scan(layer, q, k, states * steps[..., None], A.to(_FLOAT) * steps)
            return (out if D is None else out + D[:, None] * states)[None].contiguous(), None

        return {
            "causal_conv1d_fn": causal_conv1d_fn,
            "torch_chunk_gated_delta_rule": torch_chunk_gated_delta_rule,
            "mamba2_chunk_scan": mamba2_chunk_scan,
        }

    def _convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: Any) -> Tensor:
        """(1, channels, n) of (1, channels, n): each row of itself and its own last ancestors."""
        from transformers.activations import ACT2FN

        kernel, found = weight.shape[-1], self._rows.get(layer)
        earlier = inputs[0, :, :0] if found is None else found.inputs
        state = self._states.get(layer)
        last = inputs.new_zeros(inputs.shape[1], kernel - 1) if state is None else state.last
        mine = torch.cat([earlier, inputs[0]], dim=1)
        columns = torch.cat([last, mine], dim=1)
        seen = F.pad(self._seen, (kernel - 1, 0), value=True).to(inputs.device)
        places = torch.where(seen, torch.arange(seen.shape[1], device=seen.device), -1)
        nearest = places.topk(kernel, dim=1).values.flip(1)  # (n, kernel), the row itself last
        out = (columns[:, nearest].to(_FLOAT) * weight[:, None].to(_FLOAT)).sum(-1)
        out = out if bias is None else out + bias[:, None].to(_FLOAT)
        nothing = inputs.new_empty(mine.shape[1], 0, dtype=_FLOAT)
        self._rows[layer] = (
            _Rows(mine, nothing, nothing, nothing[..., None], nothing[..., None])
            if found is None
            else (_Rows(mine, found.decay, found.total, found.keys, found.values))
        )
        return (out if activation is None else ACT2FN[activation](out))[None].to(inputs.dtype)

    def _scan(self, layer: int, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None = None) -> Tensor:
        """(n, heads, values) what every row reads after it was added.

        Args:
            q, k, v: (n, heads, keys or values).
            decay: (n, heads) logarithms.
            beta: (n, heads), for a gated delta net, where `v` is what S is to hold for k; None where it is added.
        """
        new, seen = len(q), self._seen.to(q.device)
        before = seen.shape[1] - new
        found = self._rows[layer]
        if before:
            decay = torch.cat([found.decay, decay])
            keys = torch.cat([found.keys, k])
        else:
            keys = k
        total_new = seen.double() @ decay.double()
        total = torch.cat([found.total, total_new]) if before else total_new
        apart = (total_new.T[:, :, None] - total.T[:, None, :]).masked_fill(~seen, -torch.inf).to(_FLOAT).exp()
        state = self._states.get(layer)
        memory = None if state is None else state.memory
        so_far = total_new.to(_FLOAT).exp()[..., None]
        if beta is not None:
            read = torch.einsum("nhd,uhd->hnu", k, keys) * apart
            wanted = v if memory is None else v - so_far * torch.einsum("nhd,hde->nhe", k, memory)
            if before:
                wanted = wanted - torch.einsum("hnu,uhe->nhe", read[..., :before], found.values)
            rates = beta.T[..., None]
            system = rates * read[..., before:]  # solved as if its diagonal were 1: a row does not see itself
            solved = torch.linalg.solve_triangular(
                system, rates * wanted.transpose(0, 1), upper=False, unitriangular=True
            )
            v = solved.transpose(0, 1)
        values = torch.cat([found.values, v]) if before else v
        out = torch.einsum("hnu,uhe->nhe", torch.einsum("nhd,uhd->hnu", q, keys) * apart, values)
        self._rows[layer] = _Rows(found.inputs, decay, total, keys, values)
        return out if memory is None else out + so_far * torch.einsum("nhd,hde->nhe", q, memory)

    # What becomes of the text.

    def keep_rows_(self, start: int, rows: Sequence[int]) -> int:
        end = super().keep_rows_(start, rows)
        self._advance([*range(start - self._held), *(row - self._held for row in rows)])
        return end

    def resumable(self, tokens: int) -> int:
        """Where reading can go on of a text of which so many tokens are the same: there, or at a border before it."""
        if tokens >= self._tokens:
            return tokens
        return max((border for border in self._borders if border <= tokens), default=0)

    def rewind_(self, tokens: int, rows: int) -> None:
        """Go back to a place that `resumable` named, in place; `rows` are those that the text has there."""
        if tokens >= self._tokens:
            self._advance(range(tokens - self._tokens))
        else:
            self._states, self._tokens, self._held = self._borders.get(tokens, {}), tokens, rows
            self._rows = {}
        self._borders = {border: states for border, states in self._borders.items() if border <= tokens}

    def mark_border(self) -> None:
        """A prompt was read: keep the states after it, where it was long enough for passes of its own."""
        if self._text_was_read:
            self._borders.pop(self._tokens, None)
            self._borders[self._tokens] = self._states
            while len(self._borders) > BORDERS:
                del self._borders[next(iter(self._borders))]
        self._text_was_read = False

    def copy_states_(self, source: KVCache, tokens: int, rows: int) -> None:
        """Take the states that another cache of the network has after so many tokens, in place.

        Attention may have fewer rows of that text; a state is of all of it.
        """
        assert isinstance(source, RecurrentCache), "states are copied from a cache of the same network"
        found = (
            source._after(range(tokens - source._tokens))
            if tokens >= source._tokens
            else source._borders.get(tokens, {})
        )
        self._states = {layer: state for layer, state in found.items() if layer in self.recurrent}
        self._tokens, self._held, self._rows, self._borders = tokens, rows, {}, {}

    def fill_states_(self, tokens: int) -> None:
        """Act as if so many tokens had been read, in place."""
        self._states, self._tokens, self._held, self._rows, self._borders = {}, tokens, tokens, {}, {}

    def bytes_until(self, rows: int, like: Tensor, longest: int | None = None) -> int:
        states = sum(
            (1 + BORDERS) * size.state_bytes
            for cache in self._of_network
            if isinstance(cache, RecurrentCache)
            for size in cache.recurrent.values()
        )
        return super().bytes_until(rows, like, longest) + states

    def _advance(self, path: Sequence[int]) -> None:
        """These rows behind the text, each below the one before it, become text; all others are forgotten."""
        if path:
            self._states = self._after(path)
        self._tokens, self._held, self._rows = self._tokens + len(path), self._held + len(path), {}

    def _after(self, path: Sequence[int]) -> Mapping[int, _State]:
        """The states after these rows."""
        if not path:
            return self._states
        return {
            layer: _after(self._states.get(layer), rows, list(path), self.recurrent[layer].kernel)
            for layer, rows in self._rows.items()
        }


def _after(state: _State | None, rows: _Rows, path: list[int], kernel: int) -> _State:
    inputs = rows.inputs[:, path]
    before = inputs.new_zeros(len(inputs), kernel - 1) if state is None else state.last
    last = torch.cat([before, inputs], dim=1)[:, -(kernel - 1) :].clone()
    if not rows.keys.numel():
        return _State(last, None)
    total = rows.total[path]
    left = (total[-1] - total).to(_FLOAT).exp()[..., None]
    memory = torch.einsum("uhd,uhe->hde", rows.keys[path] * left, rows.values[path])
    if state is not None and state.memory is not None:
        memory = memory + total[-1].to(_FLOAT).exp()[:, None, None] * state.memory
    return _State(last, memory)
