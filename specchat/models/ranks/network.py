"""Shares of a decoder's weights, one for each rank, and the network that computes a rank's share of a pass."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

import torch
from torch import Tensor

from specchat.core.reading import Counters
from specchat.core.request import Adapter, Entry, ExtraRow, LayerHook, PassRequest
from specchat.errors import PlanRefused, UsageError
from specchat.models.decoder.adapters import MOST_RANK, Factors, checked, paired, sizes_of
from specchat.models.decoder.eager import WHOLE_DOWN, WHOLE_O, EagerNetwork, PassTensors
from specchat.models.decoder.kv_cache import KVCache, RotationTables
from specchat.models.decoder.layer_hooks import LayerWatch
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.network import Pass
from specchat.models.decoder.pruning import KeptUnits, PrunedSource
from specchat.models.decoder.shape import Shape
from specchat.models.decoder.weight_check import check_weights
from specchat.models.ranks import plan as p
from specchat.models.ranks.group import Group
from specchat.models.ranks.plan import demand
from specchat.models.weights.weight_source import (
    ALL_ROWS,
    GROUP,
    FourBit,
    RowChoice,
    StoredRows,
    TensorFacts,
    WeightSource,
)

_Kind = TypeVar("_Kind")
_TABLES = ("embed", "head")
_COLUMNS = ("o", "down")


@dataclass(frozen=True)
class Share:
    """One rank's part of every layer, and of the rows of embedding and head.

    Args:
        kv_heads: heads of keys and values, with all heads of queries that read them.
    """

    rank: int
    kv_heads: range
    channels: range
    vocab: range

    def heads(self, shape: Shape) -> range:
        """The heads of queries."""
        group = shape.heads // shape.kv_heads
        return range(self.kv_heads.start * group, self.kv_heads.stop * group)

    def shape(self, whole: Shape) -> Shape:
        """The shape of a network that has only this share."""
        heads, kv_heads, inner, tokens = map(len, (self.heads(whole), self.kv_heads, self.channels, self.vocab))
        return dataclasses.replace(whole, heads=heads, kv_heads=kv_heads, inner=inner, vocab_size=tokens)

    def units(self, name: str, whole: Shape) -> slice:
        """The rows of embed, head, q, k, v, gate and up, or columns of o and down, that belong to it."""
        if name in (*_TABLES, "gate", "up", "down"):
            own, size = self.vocab if name in _TABLES else self.channels, 1
        else:
            own, size = self.heads(whole) if name in ("q", "o") else self.kv_heads, whole.head_dim
        return slice(own.start * size, own.stop * size)


def shares_of(shape: Shape, ranks: int) -> tuple[Share, ...]:
    """A share for each rank: whole heads, and so many channels that all shares have about the same number of weights.

    Raises:
        UsageError: there are too few heads of keys and values; says how many ranks can share them.
    """
    channels_together = GROUP if shape.inner % GROUP == 0 and shape.inner // GROUP >= ranks else 1
    pieces = shape.inner // channels_together
    most = min(shape.kv_heads, pieces, shape.vocab_size)
    if ranks > most:
        raise UsageError(
            f"{ranks} ranks cannot share {shape.kv_heads} heads of keys and values; nearest that works: {most}"
        )
    kv = _even(shape.kv_heads, ranks)
    of_head = 2 * (shape.heads // shape.kv_heads + 1) * shape.head_dim  # rows and columns, of `hidden` weights each
    of_piece = 3 * channels_together
    each = (shape.kv_heads * of_head + pieces * of_piece) / ranks
    until = [round((each * (rank + 1) - kv[rank].stop * of_head) / of_piece) for rank in range(ranks - 1)]
    ends = [0]
    for rank, end in enumerate([*until, pieces]):
        ends.append(max(ends[-1] + 1, min(end, pieces - (ranks - 1 - rank))))
    channels = [range(first * channels_together, last * channels_together) for first, last in pairwise(ends)]
    vocab = _even(shape.vocab_size, ranks)
    return tuple(Share(rank, kv[rank], channels[rank], vocab[rank]) for rank in range(ranks))


def _even(count: int, parts: int) -> list[range]:
    """Numbers below `count` in runs whose lengths differ by one at most, the longer ones first."""
    sizes = [count // parts + (part < count % parts) for part in range(parts)]
    return [range(first, last) for first, last in pairwise(accumulate(sizes, initial=0))]


class ShardSource(PrunedSource):
    """The weights of one share. What every rank adds to the sum of all, such as a bias of o, the first alone has."""

    def __init__(self, source: WeightSource, share: Share, whole: Shape) -> None:
        def in_all_layers(units: range) -> Tensor:
            return torch.arange(units.start, units.stop).expand(whole.layers, -1)

        units = share.heads(whole), share.kv_heads, share.channels
        super().__init__(source, KeptUnits(*map(in_all_layers, units)), whole)
        self._share, self._whole = share, whole

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        stored = super().stored(name, layer)
        return stored.some(self._units(name)) if stored is not None and name in _TABLES else stored

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        weight = self._source.four_bit(name, layer)
        if weight is None:
            return None
        units = self._units(name)
        if name in _COLUMNS:
            if units.start % GROUP or units.stop % GROUP:
                return None
            groups = slice(units.start // GROUP, units.stop // GROUP)
            parts = weight.numbers[:, units], weight.scale[:, groups], weight.minimum[:, groups]
        else:
            parts = weight.numbers[units], weight.scale[units], weight.minimum[units]
        return FourBit(*(part.contiguous() for part in parts))

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        if name in _TABLES:
            return super().dense(name, layer, part, self._units(name))[rows]
        values = super().dense(name, layer, part, rows)
        return torch.zeros_like(values) if self._share.rank and name in _COLUMNS and part == "bias" else values

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        facts = super().about(name, layer, part)
        if name not in _TABLES or facts.sizes is None:
            return facts
        return dataclasses.replace(facts, sizes=(len(self._share.vocab), *facts.sizes[1:]))

    def embed(self, ids: list[int]) -> Tensor:
        first = self._share.vocab.start
        return self._source.embed([first + id for id in ids])

    def _units(self, name: str) -> slice:
        return self._share.units(name, self._whole)


class RankNetwork(EagerNetwork):
    """Computes a pass with one share of every matrix; every rank ends up with the states of all rows.

    What a half of a layer adds is summed over the ranks, and so are embeddings, of which each rank has some rows. Of
    the logits each rank has those of its own part of the vocabulary.
    """

    def __init__(self, builder: Builder, whole: Shape, shares: Sequence[Share], group: Group) -> None:
        super().__init__(builder.build())
        self.whole, self.shares, self.share, self.group = whole, shares, shares[group.rank], group
        self.notes = builder.notes

    def embed(self, tokens: Sequence[int]) -> Tensor:
        vocab = self.share.vocab
        ours = torch.tensor([token in vocab for token in tokens], dtype=torch.bool, device=self.device)
        rows = self.weights.embed([token - vocab.start if token in vocab else 0 for token in tokens])
        return self.group.all_reduce(rows * ours[:, None])

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, share of V) of (n, d) states after the last layer."""
        return super().head(hidden).logits.contiguous()

    def chunk_scores(self, running: Pass, chunk_tokens: int) -> Tensor:
        scores = super().chunk_scores(running, chunk_tokens).mean(dim=1, keepdim=True)  # one choice for all ranks
        return self.group.all_reduce(scores * (self.shape.heads / self.whole.heads))

    def prepared(self, adapter: Adapter) -> Factors:
        if adapter not in self._adapters:
            factors = paired(adapter.factors, self.whole.head_dim)
            self._adapters[adapter] = {
                (layer, name): self._share_of(name, down, up) for (layer, name), (down, up) in factors.items()
            }
        return self._adapters[adapter]

    def _share_of(self, name: str, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        units = self.share.units(name, self.whole)
        down, up = (down[:, units], up) if name in _COLUMNS else (down, up[units])
        return down.to(self.like), up.to(self.like)

    def _adapted(
        self, tensors: PassTensors, index: int, columns: Mapping[str, slice], x: Tensor, out: Tensor
    ) -> Tensor:
        out = super()._adapted(tensors, index, columns, x, out)
        return self.group.all_reduce(out.contiguous()) if columns is WHOLE_O or columns is WHOLE_DOWN else out

    def _stay(self, watch: LayerWatch, index: int, hidden: Tensor) -> list[int] | None:
        """The first rank asks the hooks, and tells the others which rows go on."""
        if index not in watch.hooked:
            return super()._stay(watch, index, hidden)
        if self.group.rank == 0:
            rows = super()._stay(watch, index, hidden)
            self.group.announce(p.Envelope([], p.Stay(rows)))
            return rows
        return self._told_rows(len(hidden))

    def _enter(self, running: Pass, index: int, hidden: Tensor, rows: list[int]) -> tuple[Tensor, list[int]]:
        """The first rank computes the states of rows that enter, and sends all of them to the others."""
        if self.group.rank == 0:
            hidden, rows = super()._enter(running, index, hidden, rows)
            self.group.announce(p.Envelope([], p.Stay(rows)))
            return self.group.broadcast(hidden.contiguous()), rows
        told = self._told_rows(running.plan.rows)
        demand(told, "no rows after some entered")
        return self.group.broadcast(hidden.new_zeros(len(told or ()), self.whole.hidden)), list(told or ())

    def _told_rows(self, count: int) -> list[int] | None:
        """The rows that go on, of so many, as the first rank says."""
        while isinstance(told := self.group.announced().message, p.Head):  # which a hook may ask for
            self.head_for_first(told)
        if not isinstance(told, p.Stay):
            raise PlanRefused("a plan was refused: no rows that go on in the middle of a pass")
        p.check_stay(told, count)
        return told.rows

    def head_for_first(self, message: p.Head) -> None:
        """Send the first rank this rank's logits for states that it sends."""
        demand(0 < message.rows <= p.MOST_ROWS, f"a head of {message.rows} rows")
        states = self.group.broadcast(self.like.new_zeros(message.rows, self.whole.hidden))
        self.group.send(self.logits(states))


def rank_network(shape: Shape, source: WeightSource, precision: str, device: torch.device, group: Group) -> RankNetwork:
    """This rank's share, read from the source.

    Raises:
        UsageError: so many ranks cannot share the weights.
        DamagedModel: the source's weights are not those of the shape.
    """
    shares = shares_of(shape, group.size)
    check_weights(source, shape)
    share = shares[group.rank]
    builder = Builder(share.shape(shape), ShardSource(source, share, shape), precision, device)
    return RankNetwork(builder, shape, shares, group)


def fingerprint(shape: Shape, source: WeightSource) -> str:
    """Sizes and norms of a model in few characters: two models that agree in all of them are the same."""
    told = hashlib.sha256(repr(shape.matrix("down") + shape.matrix("embed") + (shape.layers,)).encode())
    for layer in (None, *range(shape.layers)):
        norm = source.dense("norm" if layer is None else "input_norm", layer)
        told.update(norm.float().contiguous().numpy().tobytes())
    return told.hexdigest()


@dataclass
class _HeldCache:
    network: int
    cache: KVCache
    tables: RotationTables


class _Held(dict[int, _Kind]):
    """What the first rank has numbered; PlanRefused where nothing has a number."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __missing__(self, number: int) -> _Kind:
        raise PlanRefused(f"a plan was refused: {self._what} {number}, which is not here")


class Follower:
    """Does what the first rank's plan says, until it says stop."""

    def __init__(self, group: Group, load: Callable[[p.Load, Group], RankNetwork]) -> None:
        """Nothing held yet. `load` reads this rank's share of a model; what it raises is reported to the first."""
        self._group, self._load = group, load
        self._networks: _Held[RankNetwork] = _Held("network")
        self._caches: _Held[_HeldCache] = _Held("cache")
        self._adapters: _Held[Adapter] = _Held("adapter")

    @torch.inference_mode()
    def run(self) -> None:
        """Follow.

        Raises:
            RanksLost: the first rank, or another, has gone.
            PlanRefused: the plan contradicts itself, or what is held here.
        """
        while True:
            envelope = self._group.announced()
            for held in (self._caches, self._adapters, self._networks):
                for number in envelope.gone:
                    held.pop(number, None)
            if isinstance(envelope.message, p.Stop):
                return
            self._do(envelope.message)

    def _do(self, message: p.Message) -> None:
        match message:
            case p.Load():
                self._report(message)
            case p.NewCache():
                network = self._networks[message.network]
                p.check_cache(message, network.shape.layers)
                cache = network.new_cache(message.layers, message.max_rows)
                tables = RotationTables(network.shape, network.device, message.max_rows)
                self._caches[message.cache] = _HeldCache(message.network, cache, tables)
            case p.Run():
                self._run(message)
            case p.RunTogether():
                self._run_together(message.runs)
            case p.Embed():
                network = self._networks[message.network]
                demand(all(token < network.whole.vocab_size for token in message.tokens), "a token that there is not")
                network.embed(message.tokens)
            case p.Head():
                self._networks[message.network].head_for_first(message)
            case p.Keep():
                cache = self._caches[message.cache].cache
                p.check_keep(message, cache.capacity)
                cache.keep_rows_(message.start, message.rows)
            case p.Copy():
                cache, source = self._caches[message.cache].cache, self._caches[message.source].cache
                p.check_copy(message, source.capacity, cache.max_rows, (list(cache.place_of), list(source.place_of)))
                cache.copy_rows_(source, message.rows, message.known, message.layers)
            case p.Block():
                self._block(message)
            case p.NewAdapter():
                self._take_adapter(message)
            case _:
                raise PlanRefused("a plan was refused: rows that stay after no hook")

    def _report(self, load: p.Load) -> None:
        p.check_load(load, self._group.size)
        try:
            network = self._load(load, self._group)
        except Exception as error:  # told to the first rank, which raises it
            self._group.report(p.Report(0, " ".join(str(error).split())[:1000] or type(error).__name__))
        else:
            self._networks[load.network] = network
            self._group.report(p.Report(network.nbytes))

    def _run_together(self, runs: Sequence[p.Run]) -> None:
        first = self._caches[runs[0].cache].network
        network = self._networks[first]
        p.check_together(runs, network.whole.layers)
        demand(all(self._caches[run.cache].network == first for run in runs), "passes at once of other networks")
        self._group.send(network.logits(torch.cat(network.run_together([self._pass(run) for run in runs]))))

    def _run(self, run: p.Run) -> None:
        running, network = self._pass(run), self._networks[self._caches[run.cache].network]
        if run.chunk_tokens:
            network.chunk_scores(running, run.chunk_tokens)
            return
        states = network.run(running)
        if run.head:
            self._group.send(network.logits(states[running.plan.missing :]))

    def _pass(self, run: p.Run) -> Pass:
        held = self._caches[run.cache]
        network, cache = self._networks[held.network], held.cache
        whole = network.whole
        plan = p.plan_of(run, whole.vocab_size, cache.max_rows)
        parts = p.parts_of(run, whole.layers, cache.place_of)
        hook = LayerHook(frozenset(run.hooked), lambda *_: None)  # the first rank asks
        watch = LayerWatch(plan, PassRequest(hooks=(hook,))) if run.hooked else None
        extra_rows: list[ExtraRow] = []
        if run.extra_rows:
            rows = self._group.broadcast(network.like.new_zeros(len(run.extra_rows), whole.hidden))
            adapters = [self._adapters[number] if number else None for number in run.extra_rows]
            enter = [Entry(layer - 1, rows) if layer else None for layer in run.entries] or [None] * len(rows)
            extra_rows = [ExtraRow(0, *one) for one in zip(rows, [None] * len(rows), adapters, enter, strict=True)]
        tables = held.tables.until(plan.end)
        return Pass(plan, network.embed, tables, cache, Counters(), parts, watch, extra_rows)

    def _block(self, block: p.Block) -> None:
        held = self._caches[block.cache]
        network, cache = self._networks[held.network], held.cache
        demand(block.first + block.rows <= cache.max_rows + p.PAST_CONTEXT, "rows outside the cache")
        demand(block.put or block.first < cache.capacity, "rows outside the cache")
        if block.put:
            room = torch.zeros(cache.block_bytes(block.rows, network.like), dtype=torch.uint8)
            cache.put_block_(block.first, block.rows, self._group.receive(room), network.like)
        else:
            self._group.send(cache.block(block.first, block.rows))

    def _take_adapter(self, new: p.NewAdapter) -> None:
        whole = self._networks[new.network].whole
        sizes = sizes_of(whole)
        for layer, name, rank in new.factors:
            demand(name in sizes and layer < whole.layers and 0 < rank <= MOST_RANK, "an adapter that does not fit")
        factors: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        for layer, name, rank in new.factors:
            outputs, inputs = sizes[name]
            down, up = torch.zeros(rank, inputs), torch.zeros(outputs, rank)
            factors[layer, name] = self._group.broadcast(down), self._group.broadcast(up)
        adapter = Adapter(factors)
        checked(adapter, whole.layers, sizes)
        self._adapters[new.adapter] = adapter
