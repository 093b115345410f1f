"""Messages of the first rank to the others: which pass to compute, which rows to keep. They are checked here alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import Annotated, TypeVar

import msgspec

from specchat.errors import PlanRefused
from specchat.models.decoder.cache_rows import PassPlan
from specchat.models.decoder.network import Pass, SubLayers

MOST_BYTES = 64 << 20
"""Of a message."""

MOST_ROWS = 1 << 16
"""Of a pass."""

MOST_TEXTS = 64
"""Of a pass."""

PAST_CONTEXT = 1 << 12
"""Rows and positions by which a tree may reach beyond the longest text."""

Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Numbers = list[Number]
Above = list[Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]]


class PlanMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One message. Networks, caches and adapters have numbers, each its own."""


class Load(PlanMessage, tag=0):
    """Load this rank's share of a model's weights, and report.

    Args:
        path: where they lie on the first rank's machine.
        devices: of each rank.
        fingerprint: of the weights, to compare.
        rounds: whether all weights are had in 4 bits.
    """

    network: Number
    name: str
    path: str
    precision: str
    devices: list[str]
    fingerprint: str
    rounds: bool
    threads: Number


class NewCache(PlanMessage, tag=1):
    """Hold keys and values of these layers."""

    cache: Number
    network: Number
    layers: Numbers
    max_rows: Number


class Run(PlanMessage, tag=3):
    """Compute a pass: a `PassPlan`, and what of the layers is computed.

    Args:
        attention, mlp: as in `SubLayers`.
        hooked: layers after which the first rank says which rows stay.
        extra_rows: for each extra row its adapter's number, 0 for none. Their embeddings are sent next.
        head: whether the head follows.
        chunk_tokens: score chunks of so many rows instead; 0 for none.
        entries: for each extra row the layer at which it enters, counted from 1, or 0 where it is there from the start;
            empty where all are.
    """

    cache: Number
    start: Number
    missing: Number
    tokens: Numbers
    common: Number
    above: Above
    first: Number
    copied: Numbers
    attention: Numbers
    mlp: Numbers
    hooked: Numbers
    extra_rows: Numbers
    head: bool
    chunk_tokens: Number = 0
    entries: Numbers = []


class Stay(PlanMessage, tag=4):
    """The places of the rows that go on after a hook, None where all do; or, where rows enter, which rows of the pass
    go on. Their states are sent next then."""

    rows: Numbers | None


class Embed(PlanMessage, tag=5):
    """Look up these tokens."""

    network: Number
    tokens: Numbers


class Head(PlanMessage, tag=6):
    """Compute the head of so many states, which are sent next."""

    network: Number
    rows: Number


class Keep(PlanMessage, tag=7):
    """`KVCache.keep_rows_`."""

    cache: Number
    start: Number
    rows: Numbers


class Copy(PlanMessage, tag=8):
    """`KVCache.copy_rows_`."""

    cache: Number
    source: Number
    rows: Numbers
    known: Number
    layers: Numbers | None


class Block(PlanMessage, tag=9):
    """Send these rows as they lie; or take them, where they are `put`."""

    cache: Number
    first: Number
    rows: Number
    put: bool


class NewAdapter(PlanMessage, tag=10):
    """Hold an adapter, whose factors are sent next: layer, product, rank of each."""

    adapter: Number
    network: Number
    factors: list[tuple[Number, str, Number]]


class Stop(PlanMessage, tag=11):
    """There is nothing more to do."""


class RunTogether(PlanMessage, tag=12):
    """Compute passes of several texts at once, each over a cache of its own, and the head of all."""

    runs: Annotated[list[Run], msgspec.Meta(min_length=1, max_length=MOST_TEXTS)]


Message = Load | NewCache | Run | Stay | Embed | Head | Keep | Copy | Block | NewAdapter | Stop | RunTogether


class Envelope(PlanMessage):
    """A message, and the numbers of what is no longer used."""

    gone: Numbers
    message: Message


class Report(PlanMessage):
    """A rank's answer to `Load`: bytes of its share of the weights, or what is wrong, in one line."""

    nbytes: Number
    error: str = ""


_Decoded = TypeVar("_Decoded")
_encoder = msgspec.msgpack.Encoder()


def encoded(message: Envelope | Report) -> bytes:
    return _encoder.encode(message)


def decoding(decoder: msgspec.msgpack.Decoder[_Decoded], refusal: str) -> Callable[[bytes], _Decoded]:
    """What reads messages of the decoder's type; PlanRefused, which begins with `refusal`: data is none."""

    def decoded(data: bytes) -> _Decoded:
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PlanRefused(f"{refusal}: {error}") from None

    return decoded


envelope_of = decoding(msgspec.msgpack.Decoder(Envelope), "a message between ranks is none")
report_of = decoding(msgspec.msgpack.Decoder(Report), "a message between ranks is none")


def demand(holds: object, what: str) -> None:
    """Refuse a plan in which something does not hold; PlanRefused says what."""
    if not holds:
        raise PlanRefused(f"a plan was refused: {what}")


def run_message(cache: int, running: Pass, adapters: Iterable[int], *, head: bool, chunk_tokens: int = 0) -> Run:
    """The message about a pass."""
    plan, parts = running.plan, running.parts
    hooked = running.watch.hooked.intersection(range(parts.layers)) if running.watch is not None else ()
    entries = [0 if row.entry is None else row.entry.layer + 1 for row in running.extra_rows] if running.entries else []
    return Run(
        *(cache, plan.start, plan.missing, list(plan.tokens), plan.common, list(plan.above), plan.first),
        *(list(plan.copied), sorted(parts.attention), sorted(parts.mlp), sorted(hooked), list(adapters)),
        *(head, chunk_tokens, entries),
    )


def plan_of(run: Run, vocab_size: int, max_rows: int) -> PassPlan:
    """The plan that a message tells, for a cache of so many rows; PlanRefused where it would reach beyond anything."""
    rows, most = len(run.tokens) + len(run.extra_rows), max_rows + PAST_CONTEXT
    demand(0 < rows <= MOST_ROWS, f"a pass of {rows} rows")
    demand(all(token < vocab_size for token in run.tokens), "a token that the vocabulary does not have")
    demand(run.missing <= len(run.tokens), "more missing tokens than tokens")
    demand(len(run.entries) in (0, len(run.extra_rows)), "rows that enter and are not there")
    demand(len(run.copied) <= run.common and _below(run.copied, most), "copied rows that are not there")
    demand(run.common <= run.start and run.start + rows <= most, "rows outside the cache")
    demand(run.common + len(run.above) - run.start == rows, "rows that are not those of its tokens")
    demand(all(above < row for row, above in enumerate(run.above)), "a row that follows a later one")
    demand(run.first + len(run.above) <= most, "positions beyond the context")
    return PassPlan(
        *(run.start, run.missing, tuple(range(len(run.tokens) - run.missing)), run.tokens, run.common, run.above),
        *(run.first, tuple(run.copied)),
    )


def parts_of(run: Run, layers: int, held: Collection[int]) -> SubLayers:
    """The halves of layers that are computed; PlanRefused: a layer that there is not, or whose rows are not held."""
    demand(_below([*run.mlp, *run.hooked, *(entry - 1 for entry in run.entries)], layers), "a layer that there is not")
    demand(set(run.attention) <= set(held), "attention in a layer whose rows are not held")
    return SubLayers(layers, frozenset(run.attention), frozenset(run.mlp))


def check_load(load: Load, ranks: int) -> None:
    """Refuse to load what has no place here."""
    demand(load.precision in ("float32", "bfloat16", "int8", "int4"), f"a number format {load.precision[:20]!r}")
    demand(len(load.devices) == ranks, "devices of other ranks")
    demand(0 < load.threads <= 1024, f"{load.threads} threads")


def check_cache(new: NewCache, layers: int) -> None:
    """Refuse a cache of other layers, or without bounds."""
    demand(_below(new.layers, layers), "a layer that there is not")
    demand(new.max_rows <= 1 << 27, "a cache without bounds")


def check_keep(keep: Keep, capacity: int) -> None:
    """Refuse to move rows that are not there."""
    demand(_below(keep.rows, capacity) and all(row >= keep.start for row in keep.rows), "rows that are not there")
    demand(_ascend(keep.rows) and keep.start + len(keep.rows) <= capacity, "rows that are not there")


def check_copy(copy: Copy, capacity: int, max_rows: int, layers: Sequence[Collection[int]]) -> None:
    """Refuse to copy rows that are not there, or layers that one of the two caches does not hold."""
    demand(_below(copy.rows, capacity) and len(copy.rows) <= max_rows + PAST_CONTEXT, "rows that are not there")
    wanted = set(layers[0] if copy.layers is None else copy.layers)
    demand(all(wanted <= set(held) for held in layers), "a layer whose rows are not held")


def check_together(runs: Sequence[Run], layers: int) -> None:
    """Refuse to compute passes at once of which one is no whole pass of tokens over a cache of its own."""
    demand(len({run.cache for run in runs}) == len(runs), "two passes at once over one cache")
    demand(sum(len(run.tokens) for run in runs) <= MOST_ROWS, "a pass of too many rows")
    demand(all(len(run.attention) == len(run.mlp) == layers for run in runs), "passes at once of some layers alone")
    demand(all(run.head and not (run.hooked or run.extra_rows or run.chunk_tokens) for run in runs), "no plain passes")


def check_stay(stay: Stay, rows: int) -> None:
    """Refuse rows that are not in the pass."""
    demand(stay.rows is None or (_below(stay.rows, rows) and _ascend(stay.rows)), "rows that are not in the pass")


def _below(numbers: Iterable[int], end: int) -> bool:
    return all(number < end for number in numbers)


def _ascend(numbers: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise(numbers))
