"""The first rank: a network and caches like any other, which tell the other ranks what to compute with their shares."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from specchat.core.device_copy import drawable
from specchat.core.reading import HeadOutput, HeadTensors
from specchat.core.request import EVERYTHING, Adapter, HeadNeeds
from specchat.errors import ModelError, RanksLost
from specchat.models.decoder.adapters import checked, sizes_of
from specchat.models.decoder.kv_cache import KVCache
from specchat.models.decoder.network import Network, Pass
from specchat.models.decoder.shape import Shape
from specchat.models.decoder.weight_check import prepared
from specchat.models.ranks import plan as p
from specchat.models.ranks.group import Group
from specchat.models.ranks.network import RankNetwork, fingerprint, rank_network
from specchat.models.weights.weight_source import WeightSource, head_rows


class Ranks:
    """The other ranks, as the first one knows them.

    Attributes:
        devices: of each rank, the first one's own first.
        lost: why they are of no use any more; empty while they are.
    """

    def __init__(
        self,
        group: Group,
        devices: Sequence[str],
        end: Callable[[], None] = lambda: None,
        death: Callable[[], str] = lambda: "",
        processes: Sequence[int] = (),
        at: str = "",
    ) -> None:
        """Ranks that have met and hold nothing.

        Args:
            end: ends the processes, those that do not end by themselves.
            at: where they joined; empty where they were started here.
            processes: the ids of those that were started for it.
            death: says which process has ended, and how; empty where that is not known.
        """
        self.group, self.devices, self.lost = group, tuple(devices), ""
        self._numbers = itertools.count(1)
        self._gone: list[int] = []
        self._lock, self._depth = threading.RLock(), 0
        self.at = at
        self._end, self._death, self.processes = end, death, tuple(processes)

    @property
    def size(self) -> int:
        return self.group.size

    def number(self, holder: object) -> int:
        """A number for something that the ranks hold; they let go of it some time after `holder` is gone."""
        number = next(self._numbers)
        weakref.finalize(holder, self._gone.append, number).atexit = False
        return number

    @contextmanager
    def told(self, message: p.Message) -> Iterator[Group]:
        """Tell the ranks what they are to do, and do the same inside. What fails inside parts the ranks for good.

        Raises:
            RanksLost: a rank has gone, or has gone before.
        """
        with self._lock:
            if self.lost:
                raise RanksLost(self.lost)
            gone = [] if self._depth else [self._gone.pop() for _ in range(len(self._gone))]
            self._depth += 1
            try:
                self.group.announce(p.Envelope(gone, message))
                yield self.group
            except BaseException as error:
                self.lost = self.lost or f"{self._why(error)}; load the pair again"
                self._end()
                if isinstance(error, RanksLost):
                    raise RanksLost(self.lost) from None
                raise
            finally:
                self._depth -= 1

    def network(
        self, shape: Shape, source: WeightSource, name: str, path: Path, precision: str, rounds: bool = False
    ) -> tuple[LeadingNetwork, list[int]]:
        """A network over all ranks, and the bytes of each one's weights.

        Args:
            name: of the model.
            path: where its weights lie on this machine.
            rounds: whether the source rounds all weights to 4 bits.

        Raises:
            ModelError: a rank could not load its share; says which, and why.
        """
        holder, device = _Holder(), torch.device(self.devices[0])
        number, devices, threads = self.number(holder), list(self.devices), torch.get_num_threads()
        load = p.Load(
            *(number, name, str(path), precision, devices, fingerprint(shape, source)), rounds=rounds, threads=threads
        )
        network: RankNetwork | None = None
        with self.told(load) as group:
            group.use_card(device)
            failed: Exception | None = None
            try:
                network = rank_network(shape, source, precision, device, group)
            except Exception as error:  # the others answer first
                failed = error
            reports = [group.reported(rank) for rank in range(1, group.size)]
        if network is None:
            raise failed or ModelError("nothing was loaded")
        for rank, report in enumerate(reports, 1):
            if report.error:
                raise ModelError(f"rank {rank} could not load its share: {report.error}")
        leading = LeadingNetwork(self, network, prepared(source, shape), number, holder)
        return leading, [network.nbytes, *(report.nbytes for report in reports)]

    def close(self) -> None:
        if not self.lost:
            with suppress(RanksLost), self.told(p.Stop()):
                pass
            self.lost = self.lost or "the ranks were let go; load the pair again"
            self._end()

    def _why(self, error: BaseException) -> str:
        if isinstance(error, RanksLost):
            return self._death() or str(error)
        return f"a pass over {self.size} ranks was broken off ({type(error).__name__})"


class _Holder:
    """Lives as long as a network that the ranks hold."""


class LeadingNetwork(Network):
    """A decoder's layers over several ranks, as a `Network`: what it computes the others compute at the same time.

    Attributes:
        inner: the first rank's own share.
    """

    def __init__(self, ranks: Ranks, inner: RankNetwork, source: WeightSource, number: int, holder: _Holder) -> None:
        """The others hold their shares already.

        Args:
            source: all weights, prepared.
            number: of the network.
        """
        self.ranks, self.inner, self.number, self._holder = ranks, inner, number, holder
        self.shape = inner.whole
        self.precision, self.device, self.nbytes = inner.precision, inner.device, inner.nbytes
        self.kernels = f"torch, {ranks.size} ranks"
        self.threads, self.like = inner.threads, inner.like
        self._source = source
        self._adapters: WeakKeyDictionary[Adapter, int] = WeakKeyDictionary()

    def new_cache(self, layers: Collection[int], max_rows: int, beside: KVCache | None = None) -> KVCache:
        return LeadingCache(self, layers, max_rows, beside)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        if not tokens:
            return self.like.new_zeros(0, self.shape.hidden)
        with self.ranks.told(p.Embed(self.number, list(tokens))):
            return self.inner.embed(tokens)

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        return head_rows(self._source, self.shape.tied, tokens)

    def head(self, hidden: Tensor, logsumexp: bool = False) -> HeadOutput:
        hidden = hidden.to(self.like)
        if not len(hidden):
            return HeadTensors(self.like.new_zeros(0, self.shape.vocab_size))
        with self.ranks.told(p.Head(self.number, len(hidden))) as group:
            group.broadcast(hidden.contiguous())
            return self._gathered(hidden)

    @torch.inference_mode()
    def read(self, running: Pass, logsumexp: bool = False, needs: HeadNeeds = EVERYTHING) -> HeadOutput:
        if running.extra_rows and not any(row.says for row in running.extra_rows):
            return super().read(running, logsumexp)
        with self._computing(running, head=True) as ours:
            return self._gathered(self.inner.run(ours)[running.plan.missing :])

    def run(self, running: Pass) -> Tensor:
        with self._computing(running, head=False) as ours:
            return self.inner.run(ours)

    def chunk_scores(self, running: Pass, chunk_tokens: int) -> Tensor:
        with self._computing(running, head=False, chunk_tokens=chunk_tokens) as ours:
            return self.inner.chunk_scores(ours, chunk_tokens)

    def pass_bytes(self, rows: int, seen: int, logits: bool) -> int:
        """Of the first rank, which has all logits."""
        gathered = 2 * rows * self.shape.vocab_size * self.like.element_size() if logits else 0
        return self.inner.pass_bytes(rows, seen, logits) + gathered

    def joint_groups(self, passes: Sequence[Pass]) -> list[list[int]]:
        return self.inner.joint_groups(passes)

    @torch.inference_mode()
    def read_together(self, passes: Sequence[Pass], needs: Sequence[HeadNeeds]) -> list[HeadOutput]:
        messages = [self._message(running, head=True) for running in passes]
        with self.ranks.told(p.RunTogether(messages)):
            said = self.inner.run_together([dataclasses.replace(one, embed=self.inner.embed) for one in passes])
            logits = self._gathered(torch.cat(said)).logits
        return [HeadTensors(rows) for rows in torch.split_with_sizes(logits, [len(rows) for rows in said])]

    def _message(self, running: Pass, *, head: bool, chunk_tokens: int = 0) -> p.Run:
        cache = running.cache
        assert isinstance(cache, LeadingCache), "the other ranks hold a cache like it"
        adapters = [0 if one.adapter is None else self._adapter(one.adapter) for one in running.extra_rows]
        return p.run_message(cache.number, running, adapters, head=head, chunk_tokens=chunk_tokens)

    @contextmanager
    def _computing(self, running: Pass, *, head: bool, chunk_tokens: int = 0) -> Iterator[Pass]:
        """The pass as the first rank computes it, told to the others."""
        extra_rows = running.extra_rows
        with self.ranks.told(self._message(running, head=head, chunk_tokens=chunk_tokens)) as group:
            if extra_rows:
                group.broadcast(torch.stack([one.embedding for one in extra_rows]).to(self.like))
            yield dataclasses.replace(running, embed=self.inner.embed)

    def _gathered(self, states: Tensor) -> HeadOutput:
        """The logits of all ranks for (n, d) states, put together."""
        own = self.inner.logits(states)
        theirs = [own.new_empty(len(own), len(share.vocab)) for share in self.inner.shares[1:]]
        for rank, part in enumerate(theirs, 1):
            self.ranks.group.receive(part, rank)
        return HeadTensors(drawable(torch.cat([own, *theirs], dim=1)))

    def _adapter(self, adapter: Adapter) -> int:
        """The number of an adapter, which the others hold from the first call on."""
        if adapter not in self._adapters:
            checked(adapter, self.shape.layers, sizes_of(self.shape))
            factors = [(layer, name, len(down)) for (layer, name), (down, _) in adapter.factors.items()]
            number = self.ranks.number(adapter)
            with self.ranks.told(p.NewAdapter(number, self.number, factors)) as group:
                for pair in adapter.factors.values():
                    for factor in pair:
                        group.broadcast(factor.detach().float().cpu().contiguous())
            self._adapters[adapter] = number
        return self._adapters[adapter]


class LeadingCache(KVCache):
    """The first rank's keys and values. What moves among them moves in the caches of the other ranks too."""

    def __init__(
        self, network: LeadingNetwork, layers: Collection[int], max_rows: int, beside: KVCache | None = None
    ) -> None:
        super().__init__(layers, max_rows, beside=beside)
        self._network, self._ranks = network, network.ranks
        self.number = self._ranks.number(self)
        with self._ranks.told(p.NewCache(self.number, network.number, sorted(layers), max_rows)):
            pass

    def keep_rows_(self, start: int, rows: Sequence[int]) -> int:
        moves = bool(rows) and rows[-1] != start + len(rows) - 1
        with self._ranks.told(p.Keep(self.number, start, list(rows))) if moves else nullcontext():
            return super().keep_rows_(start, rows)

    def copy_rows_(
        self, source: KVCache, rows: Sequence[int], known: int = 0, layers: Collection[int] | None = None
    ) -> None:
        if len(rows) <= known or not self.place_of:
            return
        assert isinstance(source, LeadingCache), "rows are copied between caches of one network"
        of = None if layers is None else sorted(layers)
        with self._ranks.told(p.Copy(self.number, source.number, list(rows), known, of)):
            super().copy_rows_(source, rows, known, layers)

    def block_bytes(self, rows: int, like: Tensor) -> int:
        return sum(self._block_bytes_of_ranks(rows))

    def block(self, first: int, rows: int) -> Tensor:
        """(bytes,) uint8 of all ranks, one behind another."""
        with self._ranks.told(p.Block(self.number, first, rows, put=False)) as group:
            parts = [super().block(first, rows)]
            for rank, size in enumerate(self._block_bytes_of_ranks(rows)[1:], 1):
                parts.append(group.receive(torch.empty(size, dtype=torch.uint8), rank))
        return torch.cat(parts)

    def put_block_(self, first: int, rows: int, content: Tensor, like: Tensor) -> None:
        own, *theirs = torch.split_with_sizes(content, self._block_bytes_of_ranks(rows))
        with self._ranks.told(p.Block(self.number, first, rows, put=True)) as group:
            for rank, part in enumerate(theirs, 1):
                group.send(part, rank)
            super().put_block_(first, rows, own, like)

    def _block_bytes_of_ranks(self, rows: int) -> list[int]:
        like = self._network.like
        return [
            super(LeadingCache, self).block_bytes(rows, like[:1]) * len(s.kv_heads) for s in self._network.inner.shares
        ]
