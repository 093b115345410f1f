"""A pass whose shapes and addresses never change, and CUDA graphs, which record it once and replay it: inputs go into
buffers, rows are padded, and the cache is seen up to a fixed row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specchat.models.decoder.adapters import AdaptedWhere, Factors
from specchat.models.decoder.cache_rows import PassPlan
from specchat.models.decoder.eager import Attention, EagerNetwork, PassTensors, folded_mask
from specchat.models.decoder.network import SubLayers

_WARM, _TIMED = 2, 5


class CudaRecorder:
    """Turns a computation on fixed buffers into one that costs its caller a single call: a CUDA graph.

    Graphs share one pool of memory: they are replayed one after the other, never at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, compute: Callable[[], None]) -> Callable[[], None]:
        """Compute, remember how, and return what does the same again: same buffers, no Python in between.

        The recording keeps no buffer alive that was there before: who made it does, for as long as it is replayed.

        Raises:
            RuntimeError: it cannot be recorded.
        """
        # Libraries set themselves up when first used, which a recording does not allow.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM):
                compute()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the engine may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            compute()
        replay: Callable[[], None] = graph.replay
        replay()
        return replay

    def seconds(self, replay: Callable[[], None]) -> float:
        """How long the device takes. Waits for it."""
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        for _ in range(_WARM):
            replay()
        stream = torch.cuda.current_stream(self._device)
        began.record(stream)
        for _ in range(_TIMED):
            replay()
        ended.record(stream)
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1000 / _TIMED


WINDOW = 256
"""Cache rows behind those that all rows attend to; a mask says which rows attend to them. None attends to the last."""


class Inputs:
    """The inputs of a pass of so many rows, padding included: parts of one buffer on the device, filled by one copy.

    `tokens`, `positions`, `places` and `adapter_of` (−1 for none) are (rows,) int64; `common` is (1,) int64, how many
    first rows every row attends to; `window` is (rows, WINDOW) bool, which rows attend to those behind.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows = rows
        self._sent = torch.zeros(_bytes(rows), dtype=torch.uint8, device=device)
        parts = _fields(self._sent, rows)
        self.tokens, self.positions, self.places, self.adapter_of, self.common, self.window = parts

    def fill_(self, plan: PassPlan, spare: int, acting: Sequence[int] = ()) -> None:
        """Copy a pass's inputs to the device, without waiting.

        Padding rows are written to the cache row `spare`. They see the common rows and one that is read in this
        pass, so that what they compute, which is never read, is finite.
        """
        pinned = self._sent.device.type == "cuda"
        # Lent by torch's allocator until the copy is done: a buffer of our own could be overwritten before.
        host = torch.zeros(len(self._sent), dtype=torch.uint8, pin_memory=pinned)
        tokens, positions, places, adapter_of, common, window = _fields(host, self.rows)
        rows, end = plan.rows, plan.mask.shape[1]
        tokens[: len(plan.tokens)] = torch.tensor(plan.tokens, dtype=torch.int64)
        positions[:rows] = torch.tensor(plan.positions)
        places[:rows] = torch.tensor(plan.written)
        places[rows:] = spare
        adapter_of[:] = -1
        if acting:
            adapter_of[rows - len(acting) : rows] = torch.tensor(acting)
        common[0] = plan.common
        window[:rows, : end - plan.common] = plan.mask[:, plan.common :]
        window[rows:, 0] = True
        self._sent.copy_(host, non_blocking=True)


@dataclass
class StaticPass:
    """All layers over one bucket of rows and context, as a function of buffers alone.

    Args:
        context: cache rows that are looked at, from the first on.
        tables: for each kind of attention, (positions, 1, head_dim / 2) complex64, or None.
        keys, values: (layers, kv, capacity, head_dim), written in place.
        embedded: (≥ rows, d) embeddings to start from, or None to look the tokens up.
        out: (≥ rows, d), where the states after the last layer are left.
        tapped: layer → (≥ rows, d), where the states after some layers are left too.
        adapters: what is added for the rows that the inputs say.
    """

    network: EagerNetwork
    inputs: Inputs
    context: int
    tables: tuple[Tensor | None, ...]
    keys: Tensor
    values: Tensor
    embedded: Tensor | None
    out: Tensor
    tapped: Mapping[int, Tensor]
    attend: Attention
    parts: SubLayers
    place_of: Mapping[int, int]
    adapters: Sequence[Factors] = ()

    def __post_init__(self) -> None:
        self._columns = torch.arange(self.context, device=self.network.device)
        self._tables = [self.network.ops.rotations(table) for table in self.tables]
        self._adapted = AdaptedWhere(self.adapters, self.inputs.adapter_of) if self.adapters else None

    def compute(self) -> None:
        """Run the layers on what the buffers hold. Doing it again changes nothing."""
        hidden = self.first()
        self.run_layers(hidden, self.tensors(hidden.dtype))

    def tensors(self, dtype: torch.dtype) -> PassTensors:
        """What the layers use, as the buffers say; masks are in this format."""
        network, inputs = self.network, self.inputs
        return PassTensors(
            rotations=[None if table is None else table.index_select(0, inputs.positions) for table in self._tables],
            places=inputs.places,
            keys=self.keys,
            values=self.values,
            seen=len(self._columns),
            masks=[
                folded_mask(self._seen(kind.window), network.shape.heads // network.shape.kv_heads, dtype)
                for kind in network.shape.attention_kinds
            ],
            attend=self.attend,
            parts=self.parts,
            place_of=self.place_of,
            adapted=self._adapted,
        )

    def run_layers(self, hidden: Tensor, tensors: PassTensors) -> None:
        """Leave the (n, d) states of all rows behind."""
        rows, added = len(hidden), None
        for index in range(self.network.shape.layers):
            hidden, added = self.network.layer(index, hidden, added, tensors)
            if index in self.tapped:
                self.tapped[index][:rows] = hidden if added is None else hidden + added
        self.out[:rows] = hidden if added is None else hidden + added

    def first(self) -> Tensor:
        weights = self.network.weights
        if self.embedded is not None:
            return self.embedded[: self.inputs.rows]
        assert weights.table is not None, "tokens are looked up only where their table lies on the device"
        return weights.table.rows(self.inputs.tokens).to(weights.activations) * weights.shape.embedding_scale

    def _seen(self, window: int | None) -> Tensor:
        """(rows, context) bool, whom each row attends to; of its text the last `window`, as `within_window` says."""
        common, behind = self.inputs.common, self.inputs.window
        before, last = self._columns[None] < common, behind
        if window is not None:
            first = common + behind.sum(1, dtype=torch.int64) - window
            before = before & (self._columns >= first[:, None])
            last = behind & (behind.flip(1).cumsum(1, dtype=torch.int32).flip(1) <= window)
        column = (self._columns - common).clamp(0, WINDOW - 1)[None].expand(self.inputs.rows, -1)
        return before | ((self._columns >= common) & last.gather(1, column))


def compute_together(texts: Sequence[StaticPass]) -> None:
    """`StaticPass.compute` of several texts, each with inputs and a cache of its own and as many rows as the others.

    The first one's buffers take the states of all.
    """
    hidden = torch.cat([text.first() for text in texts])
    each = [text.tensors(hidden.dtype) for text in texts]
    counts = [text.inputs.rows for text in texts]
    texts[0].run_layers(hidden, replace(each[0], texts=tuple(zip(counts, each, strict=True))))


def _bytes(rows: int) -> int:
    return 8 * (4 * rows + 1) + rows * WINDOW


def _fields(buffer: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Tokens, positions, places, adapter_of, common and window within the buffer's bytes."""
    numbers = buffer[: 8 * (4 * rows + 1)].view(torch.int64)
    window = buffer[8 * (4 * rows + 1) :].view(torch.bool).view(rows, WINDOW)
    return *(numbers[i * rows : (i + 1) * rows] for i in range(4)), numbers[4 * rows :], window
