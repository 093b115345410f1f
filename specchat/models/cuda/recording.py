"""CUDA graphs: the kernels of a pass recorded once and launched together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

_WARM, _TIMED = 2, 5


class Recorder(Protocol):
    """Turns a computation on fixed buffers into one that costs its caller a single call."""

    def record(self, compute: Callable[[], None]) -> Callable[[], None]:
        """Compute, remember how, and return what does the same again: same buffers, no Python in between.

        The recording keeps no buffer alive that was there before: who made it does, for as long as it is replayed.

        Raises:
            RuntimeError: it cannot be recorded.
        """

    def seconds(self, replay: Callable[[], None]) -> float:
        """How long the device takes. Waits for it."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory: they are replayed one after the other, never at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, compute: Callable[[], None]) -> Callable[[], None]:
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
