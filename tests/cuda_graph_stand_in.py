"""What CUDA graphs do, on a processor: the operations of one run, done again on the same memory."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from pretended_device import each_value, tensors_in
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class FrozenRecorder:
    """Records every operation with the very tensors it met. A replay runs no other Python and sees no other tensor.

    A value that was a Python number while recording stays that number, and what is computed anew goes where it went
    the first time; so a computation that reads anything but its buffers replays wrongly here as it would on a GPU.
    Nor does a recording keep alive what it was handed: a replay after it was let go fails.

    Args:
        faster: of two recordings that are timed, the one that is to be found faster; None times them.
    """

    def __init__(self, faster: int | None = None) -> None:
        self.recordings = 0
        self.replays = 0
        self._faster = faster
        self._timed = 0

    def record(self, compute: Callable[[], None]) -> Callable[[], None]:
        self.recordings += 1
        with _Calls() as seen:
            compute()
        calls = seen.calls

        def replay() -> None:
            self.replays += 1
            for function, args, names, values, went in calls:
                named = dict(zip(names, each_value(_there, values), strict=True))
                made = function(*each_value(_there, args), **named)
                for old, new in zip(tensors_in([went]), tensors_in([made]), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)

        return replay

    def seconds(self, replay: Callable[[], None]) -> float:
        if self._faster is not None:
            self._timed += 1
            return float((self._timed - 1) % 2 != self._faster)
        began = time.perf_counter()
        replay()
        return time.perf_counter() - began


class RefusingRecorder(FrozenRecorder):
    """A device that cannot record."""

    def record(self, compute: Callable[[], None]) -> Callable[[], None]:
        self.recordings += 1
        raise RuntimeError("operation not permitted when stream is capturing")


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, tuple[str, ...], Any, Any]] = []
        self._made: dict[int, Tensor] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a recording does not wait for the device")
        kwargs = kwargs or {}
        went = function(*args, **kwargs)
        handed, values = each_value(self._handed, [args, list(kwargs.values())])
        self.calls.append((function, handed, tuple(kwargs), values, went))
        self._made.update((id(tensor), tensor) for tensor in tensors_in([went]))
        return went

    def _handed(self, value: Any) -> Any:
        """What was computed while recording is the recording's own; the rest belongs to others."""
        return weakref.ref(value) if isinstance(value, Tensor) and id(value) not in self._made else value


def _there(value: Any) -> Any:
    if not isinstance(value, weakref.ref):
        return value
    tensor = value()
    assert tensor is not None, "a replay reads memory that was let go"
    return tensor
