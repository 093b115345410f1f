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

from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.compiled.build import NativeUnavailable
from specchat.core.record import record
from specchat.models.cpu_kernels.linear import small_network_kernels
from specchat.models.cpu_kernels.recurrence import MOST_KERNEL, CompiledRecurrence, Kept, ScanInputs
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
    """One layer after some text: (kernel − 1, channels) last inputs, (heads, keys, values) state; never written to."""

    last: Tensor
    memory: Tensor | None


@record
class _Rows:
    """One layer's rows behind that text.

    Args:
        inputs: (n, channels) of the convolution.
        decay: (n, heads) float32, logarithm of each row's decay; None until the scan, like what follows.
        kept: (n, key heads, keys) k and (n, heads, values) u, float32, and (n, heads) float64 sums of decays over the
            path: differences of long sums count.
    """

    inputs: Tensor
    decay: Tensor | None = None
    kept: Kept | None = None

    def first(self, rows: int) -> _Rows:
        if self.decay is None or self.kept is None:
            return _Rows(self.inputs[:rows])
        keys, values, totals = self.kept
        return _Rows(self.inputs[:rows], self.decay[:rows], (keys[:rows], values[:rows], totals[:rows]))


def compiled_recurrence(sizes: Collection[LayerSizes], weights: Tensor) -> CompiledRecurrence | None:
    """The recurrence in C, where it is available for such layers with such weights; None: it is PyTorch's."""
    kinds = (torch.float32, torch.bfloat16)
    if weights.device.type != "cpu" or weights.dtype not in kinds or max(of.kernel for of in sizes) > MOST_KERNEL:
        return None
    try:
        return CompiledRecurrence(small_network_kernels())
    except NativeUnavailable:
        return None


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
        compiled: CompiledRecurrence | None = None,
    ) -> None:
        """Empty, for one text. `attends` names the layers that keep keys and values, `recurrent` has the sizes of those
        that keep a state. `compiled` computes rows of trees. Where it is None, and for chunks of a text, that is
        PyTorch, which multiplies many rows quicker."""
        super().__init__(attends, max_rows, beside=beside)
        self.compiled = compiled
        self.recurrent = recurrent
        self._states: Mapping[int, _State] = {}  # after the text's first `_tokens`, which have `_held` rows
        self._tokens = self._held = 0
        self._rows: dict[int, _Rows] = {}
        self._borders: dict[int, Mapping[int, _State]] = {}  # by tokens, oldest first
        self._text_was_read = False
        self._seen = torch.empty(0, 0, dtype=torch.bool)  # (rows of the pass, rows behind the text)
        self._above: array[int] | None = None  # of each row behind the text which it follows; None where torch computes

    def begin(self, plan: PassPlan) -> None:
        self.write_at(plan.start)
        before = plan.start - self._held
        self._rows = {layer: rows.first(before) for layer, rows in self._rows.items()} if before else {}
        in_c = self.compiled is not None and plan.nodes and plan.common == self._held
        self._above = array("i", plan.above) if in_c else None
        self._seen = plan.mask[:, self._held :]

    def text_read(self, rows: int) -> None:
        """The pass is done, and all its rows were text."""
        self._advance(range(rows))
        self._text_was_read = True

    # What transformers' layers ask of a cache. They are told that nothing is there, and their functions for the
    # convolution and the recurrence are those below.

    def get_conv_state(self, *_: object, **__: object) -> None:
        return None

    get_recurrent_state = update_recurrent_state = get_conv_state

    def is_recording_past(self, layer_idx: int) -> bool:
        return True

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, **_: object) -> Tensor:
        return conv_states

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
            q, k, x, decay, rate = (_floats(of[0]) for of in (query, key, value, g, beta))
            scale = query.shape[-1] ** -0.5
            inputs = ScanInputs(q, k, x, decay, rate, delta=True, normalise=use_qk_l2norm_in_kernel, scale=scale)
            return self._scan(layer, inputs)[None].to(value.dtype), None

        def mamba2_chunk_scan(
            hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any = None, dt_bias: Any = None,
            dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, float("inf")), **_: Any,
        ) -> tuple[Tensor, None]:  # fmt: skip
            steps = dt if dt_bias is None else dt + dt_bias
            steps = _floats((F.softplus(steps) if dt_softplus else steps).clamp(*dt_limit)[0])
            q, k, x = (_floats(of[0]) for of in (C, B, hidden_states))
            skip = None if D is None else _floats(D)
            inputs = ScanInputs(q, k, x, A.to(_FLOAT) * steps, steps, delta=False, skip=skip)
            return self._scan(layer, inputs)[None], None

        return {
            "causal_conv1d_fn": causal_conv1d_fn,
            "torch_chunk_gated_delta_rule": torch_chunk_gated_delta_rule,
            "mamba2_chunk_scan": mamba2_chunk_scan,
        }

    def _convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: Any) -> Tensor:
        """(1, channels, n) of (1, channels, n): each row of itself and its own last ancestors."""
        kernel, found, new = weight.shape[-1], self._rows.get(layer), inputs.shape[2]
        mine = inputs[0].T.contiguous() if found is None else torch.cat([found.inputs, inputs[0].T])
        state = self._states.get(layer)
        last = None if state is None else state.last
        self._rows[layer] = _Rows(mine) if found is None else _Rows(mine, found.decay, found.kept)
        if self.compiled is not None and self._above is not None:
            silu = activation in ("silu", "swish")
            out = self.compiled.convolve(self._above, new, last, mine, weight, bias, silu)
            activation = None if silu else activation
        else:
            columns = torch.cat([mine.new_zeros(kernel - 1, mine.shape[1]) if last is None else last, mine])
            seen = F.pad(self._seen, (kernel - 1, 0), value=True).to(mine.device)
            places = torch.where(seen, torch.arange(seen.shape[1], device=seen.device), -1)
            nearest = places.topk(kernel, dim=1).values.flip(1)  # (n, kernel), the row itself last
            out = (columns[nearest].to(_FLOAT) * weight.T.to(_FLOAT)).sum(1)
            out = out if bias is None else out + bias.to(_FLOAT)
        if activation is not None:
            from transformers.activations import ACT2FN

            out = ACT2FN[activation](out)
        return out.to(inputs.dtype).T[None]

    def _scan(self, layer: int, inputs: ScanInputs) -> Tensor:
        """(n, heads, values) what every row reads after it was added."""
        found, state = self._rows[layer], self._states.get(layer)
        memory = None if state is None else state.memory
        decay = inputs.decay if found.decay is None else torch.cat([found.decay, inputs.decay])
        if self.compiled is not None and self._above is not None:
            kept = _with_room(found.kept, inputs)
            out = self.compiled.scan(self._above, memory, kept, inputs)
        else:
            out, kept = _scanned(self._seen.to(decay.device), memory, found.kept, decay, inputs)
        self._rows[layer] = _Rows(found.inputs, decay, kept)
        return out

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
        """Take the states that another cache of the network has after so many tokens, in place. Attention may have
        fewer rows of that text; a state is of all of it."""
        assert isinstance(source, RecurrentCache), "states are copied from a cache of the same network"
        found = (
            source._after(range(tokens - source._tokens))
            if tokens >= source._tokens
            else source._borders.get(tokens, {})
        )
        self._states = {layer: state for layer, state in found.items() if layer in self.recurrent}
        self._tokens, self._held, self._rows, self._borders = tokens, rows, {}, {}

    def fill_states_(self, tokens: int) -> None:
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
        compiled = None if self._above is None else self.compiled
        return {
            layer: _after(self._states.get(layer), rows, list(path), self.recurrent[layer].kernel, compiled)
            for layer, rows in self._rows.items()
        }


def _floats(of: Tensor) -> Tensor:
    return of.to(_FLOAT).contiguous()


def _with_room(kept: Kept | None, inputs: ScanInputs) -> Kept:
    """What is kept of earlier rows, and room for that of new ones."""
    (new, heads), like = inputs.decay.shape, (inputs.k, inputs.x)
    rooms = (*(torch.empty_like(of) for of in like), torch.empty(new, heads, dtype=torch.float64))
    keys, values, totals = rooms if kept is None else (torch.cat(both) for both in zip(kept, rooms, strict=True))
    return keys, values, totals


def _scanned(
    seen: Tensor, memory: Tensor | None, found: Kept | None, decay: Tensor, inputs: ScanInputs
) -> tuple[Tensor, Kept]:
    """What rows read of a state, and what is kept of them and of the rows before them: all rows at once, in torch.

    Args:
        seen: (n, m) bool, which of all rows each sees.
        memory: (heads, keys, values) before all rows.
        found: of the m − n rows before.
        decay: (m, heads) of all rows.
    """
    q, k, x = inputs.q, inputs.k, inputs.x
    if inputs.normalise:
        q, k = (of * torch.rsqrt((of * of).sum(-1, keepdim=True) + 1e-6) for of in (q, k))
    total_new = seen.double() @ decay.double()
    kept_keys = k if found is None else torch.cat([found[0], k])
    total = total_new if found is None else torch.cat([found[2], total_new])
    q, k, keys = (of.repeat_interleave(x.shape[1] // of.shape[1], dim=1) for of in (inputs.scale * q, k, kept_keys))
    apart = (total_new.T[:, :, None] - total.T[:, None, :]).masked_fill(~seen, -torch.inf).to(_FLOAT).exp()
    so_far = total_new.to(_FLOAT).exp()[..., None]
    if inputs.delta:
        before = len(total) - len(total_new)
        read = torch.einsum("nhd,uhd->hnu", k, keys) * apart
        wanted = x if memory is None else x - so_far * torch.einsum("nhd,hde->nhe", k, memory)
        if found is not None:
            wanted = wanted - torch.einsum("hnu,uhe->nhe", read[..., :before], found[1])
        rates = inputs.rate.T[..., None]
        system = rates * read[..., before:]  # solved as if its diagonal were 1: a row does not see itself
        solved = torch.linalg.solve_triangular(system, rates * wanted.transpose(0, 1), upper=False, unitriangular=True)
        v = solved.transpose(0, 1).contiguous()
    else:
        v = inputs.rate[..., None] * x
    values = v if found is None else torch.cat([found[1], v])
    out = torch.einsum("hnu,uhe->nhe", torch.einsum("nhd,uhd->hnu", q, keys) * apart, values)
    if memory is not None:
        out = out + so_far * torch.einsum("nhd,hde->nhe", q, memory)
    out = out if inputs.skip is None else out + inputs.skip[:, None] * x
    return out.contiguous(), (kept_keys, values, total)


def _after(
    state: _State | None, rows: _Rows, path: list[int], kernel: int, compiled: CompiledRecurrence | None
) -> _State:
    inputs = rows.inputs[path]
    before = inputs.new_zeros(kernel - 1, inputs.shape[1]) if state is None else state.last
    last = torch.cat([before, inputs])[len(path) :].clone()
    if rows.kept is None:
        return _State(last, None)
    memory = None if state is None else state.memory
    if compiled is not None:
        return _State(last, compiled.follow(path, memory, rows.kept))
    keys, values, totals = (of[path] for of in rows.kept)
    keys = keys.repeat_interleave(values.shape[1] // keys.shape[1], dim=1)
    left = (totals[-1] - totals).to(_FLOAT).exp()[..., None]
    added = torch.einsum("uhd,uhe->hde", keys * left, values)
    return _State(last, added if memory is None else added + totals[-1].to(_FLOAT).exp()[:, None, None] * memory)
