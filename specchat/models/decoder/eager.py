"""A decoder's layers as torch computes them, one operation after another: any device, every precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.device_copy import drawable, picked, to_device
from specchat.core.reading import HeadOutput, HeadTensors
from specchat.core.request import Adapter, HeadNeeds
from specchat.models.decoder.adapters import Adapted, AdaptedWhere, Factors, checked, paired, sizes_of
from specchat.models.decoder.fused_ops import PLAIN, FusedOps
from specchat.models.decoder.layer_hooks import LayerWatch
from specchat.models.decoder.layer_weights import DecoderWeights, Layer
from specchat.models.decoder.network import Network, Pass, PassSizes, SubLayers

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(queries, keys, values, mask) → (rows, heads · head_dim).

Queries are (rows, heads, head_dim), keys and values (kv, seen, head_dim). Queries that share a key head are folded into
its rows: the mask, from `folded_mask`, is (rows · group, seen) and added to the scores; None hides nothing."""


def folded_mask(seen: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """(rows · group, seen) of (rows, seen) bool: row by row, the group innermost."""
    added = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
    return added[:, None].expand(-1, group, -1).reshape(-1, seen.shape[1])


def fused(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """(rows, heads · head_dim) by torch's own kernel, which cuts the work up by rows and heads."""
    folded = _folded(queries, len(keys))
    mixed = F.scaled_dot_product_attention(folded[None], keys[None], values[None], mask)
    return _unfolded(mixed[0], len(queries))


def by_products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """(rows, heads · head_dim) by two batched products, a softmax in float32 between: cut up by seen rows as well."""
    folded, turned = _folded(queries, len(keys)), keys.transpose(1, 2)
    # Scores rounded to bfloat16 would be off by a tenth where they are large.
    if folded.dtype == torch.bfloat16 and folded.device.type == "cuda":
        scores = torch.bmm(folded, turned, out_dtype=torch.float32)
    else:
        scores = torch.bmm(folded.float(), turned.float())
    scores.mul_(queries.shape[-1] ** -0.5)
    if mask is not None:
        scores.add_(mask)
    mixed = torch.bmm(torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype), values)
    return _unfolded(mixed, len(queries))


def _folded(queries: Tensor, kv: int) -> Tensor:
    """(kv, rows · group, head_dim)."""
    rows, _, head_dim = queries.shape
    return queries.reshape(rows, kv, -1, head_dim).transpose(0, 1).reshape(kv, -1, head_dim)


def _unfolded(mixed: Tensor, rows: int) -> Tensor:
    kv, _, head_dim = mixed.shape
    return mixed.view(kv, rows, -1, head_dim).transpose(0, 1).reshape(rows, -1)


WHOLE_O, WHOLE_DOWN = {"o": slice(None)}, {"down": slice(None)}


@dataclass
class PassTensors:
    """Tensors that every layer of a pass uses: cache rows, keys and values, masks, rotations.

    Args:
        rotations: for each kind of attention, (rows, 1, head_dim / 2) complex, or (…, 2) real, as `ops` takes them;
            None where nothing is rotated.
        places: (rows,) int64, the cache row of each row.
        keys, values: (layers, kv, capacity, head_dim).
        seen: so many rows of the cache are attended to,
        masks: as far as these, of each kind of attention, added to the scores, let them be seen.
        texts: of rows of several texts, how many are of each, and the cache, masks and rotations of each.
    """

    rotations: list[Tensor | None]
    places: Tensor
    keys: Tensor
    values: Tensor
    seen: int
    masks: list[Tensor | None]
    attend: Attention
    parts: SubLayers
    place_of: Mapping[int, int]
    adapted: Adapted | AdaptedWhere | None = None
    texts: Sequence[tuple[int, PassTensors]] = ()


class EagerNetwork(Network):
    """Fused products, static cache, and attention over the rows there are."""

    def __init__(self, weights: DecoderWeights, ops: FusedOps = PLAIN) -> None:
        self.weights = weights
        self.ops = ops
        self.shape = weights.shape
        self.precision = weights.precision
        self.device = weights.device
        self.nbytes = weights.nbytes
        self.kernels = "torch"
        self.threads = torch.get_num_threads()  # torch's own; nothing here changes them
        shape = weights.shape
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        ends = (queries, queries + keys, queries + 2 * keys)
        self._qkv = {"q": slice(0, ends[0]), "k": slice(ends[0], ends[1]), "v": slice(ends[1], ends[2])}
        self._gate_up = {"gate": slice(0, shape.inner), "up": slice(shape.inner, 2 * shape.inner)}
        self._adapters: WeakKeyDictionary[Adapter, Factors] = WeakKeyDictionary()
        self.like = torch.empty(shape.kv_heads, shape.head_dim, dtype=weights.activations, device=weights.device)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self.weights.embed(list(tokens))

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        return self.weights.head_rows(list(tokens))

    def head(self, hidden: Tensor, logsumexp: bool = False) -> HeadOutput:
        normed = F.rms_norm(hidden, (self.shape.hidden,), self.weights.norm, self.shape.epsilon)
        return HeadTensors(drawable(self.weights.head(normed)))

    def pass_bytes(self, rows: int, seen: int, logits: bool) -> int:
        shape = self.shape
        sizes = PassSizes(
            shape.hidden, shape.inner, shape.heads, shape.kv_heads, shape.head_dim, shape.vocab_size,
            self.like.element_size(), masks=len(shape.attention_kinds),
        )  # fmt: skip
        return sizes.bytes(rows, seen, logits)

    def chunk_scores(self, running: Pass, chunk_tokens: int) -> Tensor:
        shape, common = self.shape, running.plan.common
        whole = common // chunk_tokens * chunk_tokens
        found: list[Tensor] = []

        def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
            means = keys[:, :whole].float().view(len(keys), -1, chunk_tokens, shape.head_dim).mean(dim=2)
            asked = queries.float().view(shape.kv_heads, -1, shape.head_dim)
            found.append((asked @ means.transpose(1, 2)).mean(dim=1) * shape.head_dim**-0.5)
            return fused(queries, keys, values, mask)

        self._run(running, attend)
        scores = torch.zeros(shape.layers, shape.kv_heads, whole // chunk_tokens)
        if found:
            scores[sorted(running.parts.attention)] = torch.stack(found).cpu()
        return scores

    def run(self, running: Pass) -> Tensor:
        return self._run(running, fused)

    def _run(self, running: Pass, attend: Attention) -> Tensor:
        hidden, watch = running.hidden, running.watch
        seen = running.masks(self.shape.attention_kinds)  # stay on the host: they are looked at there
        whole, rows = self._tensors(running, seen, attend), running.first_rows
        tensors = self._of_rows(running, whole, seen, rows) if running.entries else whole
        added: Tensor | None = None
        for index in range(self.shape.layers):
            if index in running.entries:
                hidden, rows = self._enter(running, index, hidden if added is None else hidden + added, rows)
                tensors, added = self._of_rows(running, whole, seen, rows), None
            running.counters.node_layers += running.parts.computed(range(index, index + 1)) * len(hidden)
            hidden, added = self.layer(index, hidden, added, tensors)
            if watch is not None and watch.wants(index):
                hidden, added = hidden if added is None else hidden + added, None
                stay = self._stay(watch, index, hidden)
                if stay is not None:
                    hidden, rows = hidden[stay], [rows[place] for place in stay]
                    tensors = self._of_rows(running, whole, seen, rows)
        return hidden if added is None else hidden + added

    def _enter(self, running: Pass, index: int, hidden: Tensor, rows: list[int]) -> tuple[Tensor, list[int]]:
        """States before a layer, with those of the rows that enter there; and which rows of the pass they are.

        Args:
            rows: which rows of the pass (rows so far, d) `hidden` is of.
        """
        assert running.watch is not None, "it follows extra rows"
        return running.watch.enter(index, hidden), running.watch.rows()

    def _of_rows(self, running: Pass, whole: PassTensors, seen: Sequence[Tensor], rows: list[int]) -> PassTensors:
        """The tensors of some rows of a pass."""
        first = running.plan.rows - len(running.extra_rows)
        extra_rows = [running.extra_rows[row - first] for row in rows if row >= first]
        return dataclasses.replace(
            whole,
            rotations=[None if rotations is None else picked(rotations, rows) for rotations in whole.rotations],
            places=picked(whole.places, rows),
            masks=[self._mask(mask[rows]) for mask in seen],
            adapted=Adapted.of(extra_rows, self.prepared, self.device),
        )

    def _stay(self, watch: LayerWatch, index: int, hidden: Tensor) -> list[int] | None:
        """Show a layer's states to those who want them; the places of the rows that go on, None where all do."""
        return watch.after_layer(index, hidden)

    def joint_groups(self, passes: Sequence[Pass]) -> list[list[int]]:
        return [[place for place, running in enumerate(passes) if running.parts.complete]]

    @torch.inference_mode()
    def read_together(self, passes: Sequence[Pass], needs: Sequence[HeadNeeds]) -> list[HeadOutput]:
        said = self.run_together(passes)
        logits = self.head(torch.cat(said)).logits
        return [HeadTensors(rows) for rows in torch.split_with_sizes(logits, [len(rows) for rows in said])]

    def run_together(self, passes: Sequence[Pass]) -> list[Tensor]:
        """Of each text the (nodes, d) states after the last layer, of the rows behind its missing tokens."""
        counts = [running.plan.rows for running in passes]
        each = [self._tensors(running, running.masks(self.shape.attention_kinds), fused) for running in passes]
        tensors = dataclasses.replace(each[0], texts=tuple(zip(counts, each, strict=True)))
        hidden, added = torch.cat([running.hidden for running in passes]), None
        for index in range(self.shape.layers):
            hidden, added = self.layer(index, hidden, added, tensors)
            watches = [running.watch for running in passes]
            if any(watch is not None and watch.wants(index) for watch in watches):
                hidden, added = hidden if added is None else hidden + added, None
                for watch, rows in zip(watches, torch.split_with_sizes(hidden, counts), strict=True):
                    if watch is not None:
                        watch.after_layer(index, rows)
        for running, count in zip(passes, counts, strict=True):
            running.counters.node_layers += self.shape.layers * count
        of_texts = torch.split_with_sizes(hidden if added is None else hidden + added, counts)
        return [rows[running.plan.missing :] for running, rows in zip(passes, of_texts, strict=True)]

    def layer(
        self, index: int, hidden: Tensor, added: Tensor | None, tensors: PassTensors
    ) -> tuple[Tensor, Tensor | None]:
        """One layer. The state after it is the sum of what is returned: the next norm adds it up on the way.

        Halves that are left out add nothing.

        Args:
            hidden: (rows, d), to which `added`, if there is one, is yet to be added.
        """
        layer, ops, epsilon = self.weights.layers[index], self.ops, self.shape.epsilon
        if index in tensors.parts.attention:
            hidden, normed = ops.add_norm(hidden, added, layer.input_norm, epsilon)
            mixed = self._attend(index, layer, normed, tensors)
            added = self._adapted(tensors, index, WHOLE_O, mixed, layer.o(mixed))
            added = self._normed(added, layer.post_attention_norm)
        if index in tensors.parts.mlp:
            hidden, normed = ops.add_norm(hidden, added, layer.mlp_norm, epsilon)
            gate_up = self._adapted(tensors, index, self._gate_up, normed, layer.gate_up(normed))
            inner = ops.gated(gate_up, self.shape.gate == "gelu")
            added = self._adapted(tensors, index, WHOLE_DOWN, inner, layer.down(inner))
            added = self._normed(added, layer.post_mlp_norm)
        return hidden, added

    def _normed(self, added: Tensor, weight: Tensor | None) -> Tensor:
        return added if weight is None else F.rms_norm(added, (self.shape.hidden,), weight, self.shape.epsilon)

    def _attend(self, index: int, layer: Layer, normed: Tensor, tensors: PassTensors) -> Tensor:
        shape = self.shape
        qkv = self._adapted(tensors, index, self._qkv, normed, layer.qkv(normed)).view(len(normed), -1, shape.head_dim)
        if not tensors.texts:
            return self._attend_in_text(index, layer, qkv, tensors)
        rows = torch.split_with_sizes(qkv, [count for count, _ in tensors.texts])
        each = zip(rows, tensors.texts, strict=True)
        return torch.cat([self._attend_in_text(index, layer, own, text) for own, (_, text) in each])

    def _attend_in_text(self, index: int, layer: Layer, qkv: Tensor, tensors: PassTensors) -> Tensor:
        shape = self.shape
        kind, place = shape.kind_of[index], tensors.place_of[index]
        rotations = tensors.rotations[kind]
        keys, values = tensors.keys[place], tensors.values[place]
        queries = self.ops.store_(
            qkv, layer.q_norm, layer.k_norm, shape.epsilon, rotations, tensors.places, keys, values
        )
        return tensors.attend(queries, keys[:, : tensors.seen], values[:, : tensors.seen], tensors.masks[kind])

    def _tensors(self, running: Pass, seen: list[Tensor], attend: Attention) -> PassTensors:
        end = running.plan.mask.shape[1]
        keys, values = running.cache.room_for(end, self.like)
        places = to_device(torch.tensor(running.plan.written), self.device)
        rotations = [self.ops.rotations(rotations) for rotations in running.rotations]
        masks = [self._mask(mask) for mask in seen]
        adapted = Adapted.of(running.extra_rows, self.prepared, self.device)
        return PassTensors(
            rotations, places, keys, values, end, masks, attend, running.parts, running.cache.place_of, adapted
        )

    def _adapted(
        self, tensors: PassTensors, index: int, columns: Mapping[str, slice], x: Tensor, out: Tensor
    ) -> Tensor:
        """The product `out` of x, with what adapters add to their rows."""
        if tensors.adapted is not None:
            tensors.adapted.add_(index, columns, x, out)
        return out

    def prepared(self, adapter: Adapter) -> Factors:
        """The adapter in this network's order and format."""
        if adapter not in self._adapters:
            shape, like = self.shape, self.like
            checked(adapter, shape.layers, sizes_of(shape))
            factors = paired(adapter.factors, shape.head_dim)
            self._adapters[adapter] = {where: (down.to(like), up.to(like)) for where, (down, up) in factors.items()}
        return self._adapters[adapter]

    def _mask(self, seen: Tensor) -> Tensor | None:
        if bool(seen.all()):
            return None
        group = self.shape.heads // self.shape.kv_heads
        return folded_mask(to_device(seen, self.device), group, self.weights.activations)
