"""A CUDA or MPS device on a machine without one: real numbers on the host, the rules of a device.

A tensor of the device wraps the host's tensor that holds its numbers. An operation that mixes the two kinds fails as it
would on a device, and everything for which the host would wait for the device is counted with the product's line.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_HOST = torch.device("cpu")
_COPIES_TO_HOST = "copy to the host"
_UNKNOWN_SIZE = frozenset(
    ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal", "is_nonzero")
)
"""Operations whose result the host has to look at."""
_NUMBERS = frozenset(("_local_scalar_dense", "item"))
"""A number of a tensor: what `float` asks for, which in inference mode is the second."""
_INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
_COPIES = frozenset(("_to_copy", "to"))


class _Device:
    """The pretended device of this process: there is one at a time."""

    def __init__(self, kind: str = "cuda") -> None:
        self.device = torch.device(kind, 0)
        self.waits: Counter[str] = Counter()
        self.launches = 0
        self.recording = 0


_TOLD = _Device()


class DeviceTensor(Tensor):
    """A tensor on the pretended device. To torch's own C++ it is on `meta`, which no kernel touches."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, requires_grad: bool = False) -> DeviceTensor:
        with torch.inference_mode(False):  # a part of a tensor that was made in the other mode has a version
            made = Tensor._make_wrapper_subclass(
                cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
                layout=held.layout, device=torch.device("meta"), requires_grad=requires_grad,
            )  # fmt: skip
        made.held = held
        return made  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _TOLD.device

    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]
    is_cuda = property(lambda self: _TOLD.device.type == "cuda")  # type: ignore[assignment]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist:
            _wait("tolist")
            return args[0].held.tolist()
        if func is Tensor.numpy:
            raise TypeError(f"can't convert {_TOLD.device} device type tensor to numpy")
        if func is Tensor.data_ptr:
            return args[0].held.data_ptr()
        if func in (Tensor.__getitem__, Tensor.__setitem__):  # torch makes a tensor of a list of numbers
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(
                torch.tensor(part, dtype=torch.int64 if not part else None) if isinstance(part, list) else part
                for part in index
            )
            args = (args[0], index, *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Everywhere(TorchDispatchMode):
    """Sees operations that make tensors on the device out of nothing."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch is to wrap the method below for its compiler, at 10 µs an operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


@contextmanager
def pretended(kind: str = "cuda", memory: int = 24 << 30) -> Iterator[torch.device]:
    """A device of this kind for as long as this lasts.

    Args:
        memory: bytes that are free on it.
    """
    _TOLD.__init__(kind)  # type: ignore[misc]
    make = torch.tensor

    def tensor(data: Any, *, dtype: Any = None, device: Any = None, **more: Any) -> Tensor:
        made = make(data, dtype=dtype, **more)
        if not _is_there(device):
            return made
        _wait("a tensor of numbers of the host")
        return _wrapped(made)  # type: ignore[no-any-return]

    def pinned(host: Tensor, *_: Any) -> Tensor:
        copy = host.clone()
        copy.pinned = True  # type: ignore[attr-defined]
        return copy

    with ExitStack() as entered:
        own = {
            "is_available": lambda: kind == "cuda",
            "_lazy_init": lambda: None,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "mem_get_info": lambda device=None: (memory, memory),
            "get_device_name": lambda device=None: "pretended",
            "is_bf16_supported": lambda including_emulation=True: True,
            "memory_allocated": lambda device=None: 0,
            "max_memory_allocated": lambda device=None: 0,
            "reset_peak_memory_stats": lambda device=None: None,
            "empty_cache": lambda: None,
            "synchronize": lambda device=None: _wait("synchronize"),
        }
        for name, instead in own.items():
            entered.enter_context(patch.object(torch.cuda, name, instead))
        entered.enter_context(patch.object(torch.backends.mps, "is_available", lambda: kind == "mps"))
        entered.enter_context(patch.object(torch, "tensor", tensor))
        entered.enter_context(patch.object(Tensor, "pin_memory", pinned))
        entered.enter_context(_Everywhere())
        yield _TOLD.device


@contextmanager
def waits() -> Iterator[Counter[str]]:
    """Counts what the host waits for while this lasts: "what file:line" → how often."""
    before, _TOLD.waits = _TOLD.waits, Counter()
    try:
        yield _TOLD.waits
    finally:
        _TOLD.waits = before + _TOLD.waits


class RecordsNothing:
    """Stands for CUDA graphs: a replay computes again, and inside of it nothing may wait.

    Attributes:
        recordings: how many were made.
    """

    def __init__(self) -> None:
        self.recordings = 0

    def record(self, compute: Callable[[], None]) -> Callable[[], None]:
        self.recordings += 1

        def replay() -> None:
            _TOLD.recording += 1
            try:
                compute()
            finally:
                _TOLD.recording -= 1

        replay()
        return replay

    def seconds(self, replay: Callable[[], None]) -> float:
        return 1.0


def _wait(reason: str) -> None:
    assert not _TOLD.recording, f"a recording does not wait for the device: {reason} at {_line()}"
    _TOLD.waits[f"{reason} {_line()}"] += 1


def _line() -> str:
    """The product's innermost line that is running, but for the functions that copy for others."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/specchat/" in name and not name.endswith("device_copy.py"):
            return f"{name.rpartition('/specchat/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a test"


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type in (_TOLD.device.type, "meta")


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values, and in lists and tuples among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def each_value(change: Callable[[Any], Any], value: Any) -> Any:
    """A value with what is in lists and tuples changed. (torch's own `tree_map` took half the time of a pass.)"""
    return type(value)([each_value(change, one) for one in value]) if isinstance(value, list | tuple) else change(value)


def _wrapped(value: Any) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, DeviceTensor):
        return value
    if _TOLD.device.type == "mps" and value.dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
    return DeviceTensor(value)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation makes, on the device where one of its tensors is there or it is told to."""
    name = func._schema.name.removeprefix("aten::")
    tensors = [*tensors_in(args), *tensors_in(kwargs.values())]
    there = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    if name in _COPIES and (there or _is_there(_wanted(func, args, kwargs))):
        return _moved(func, name, args, kwargs)
    pin = kwargs.pop("pin_memory", None)
    if name == "copy_" and there:
        return _copied_onto(args, kwargs)
    if name in _NUMBERS and there:
        _wait("item")
    elif name in _UNKNOWN_SIZE and there:
        _wait(name)
    elif name in _INDEXING and there:
        _check_index(func, args)
    elif there and (host := [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor) and tensor.dim()]):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, {func}: {[tuple(each.shape) for each in there]} on "
            f"{_TOLD.device}, {[tuple(each.shape) for each in host]} on cpu, at {_line()}"
        )
    on_device = bool(there) or _is_there(kwargs.get("device"))
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": _HOST}
    if not on_device:
        made = func(*args, **kwargs)
        if pin:
            made.pinned = True
        return made
    if name == "bmm" and func._overloadname == "dtype":
        made = torch.bmm(args[0].held.to(args[2]), args[1].held.to(args[2]))
    else:
        made = func(*each_value(_held, args), **{key: each_value(_held, value) for key, value in kwargs.items()})
    _TOLD.launches += 1
    if "out" in kwargs:
        return kwargs["out"]
    if func._schema.is_mutable and name.endswith("_") and isinstance(args[0], DeviceTensor):
        return args[0]
    return each_value(_wrapped, made)


def _wanted(func: Any, args: Any, kwargs: Any) -> Any:
    """The device that a copy is to be on; None where it stays."""
    overload = func._overloadname
    if overload == "device":
        return kwargs.get("device", args[1] if len(args) > 1 else None)
    if overload == "other":
        return args[1].device
    return kwargs.get("device")


def _moved(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    source, device = args[0], _wanted(func, args, kwargs)
    given = {
        argument.name: value
        for argument, value in [*zip(func._schema.arguments, args, strict=False)]
        if argument.name not in ("self", "device", "other")
    }
    given |= {key: value for key, value in kwargs.items() if key not in ("device", "other")}
    dtype = args[1].dtype if func._overloadname == "other" else given.get("dtype") or source.dtype
    from_there = isinstance(source, DeviceTensor)
    to_there = from_there if device is None else _is_there(device)
    if name == "to" and from_there == to_there and dtype == source.dtype and not given.get("copy"):
        return source
    copied = _held(source).to(dtype, copy=True)
    if not from_there and to_there:
        if not (given.get("non_blocking") and getattr(source, "pinned", False)) and source.numel():
            _wait("copy from pageable memory")
    elif from_there and not to_there:
        _wait(_COPIES_TO_HOST)
    return _wrapped(copied) if to_there else copied


def _copied_onto(args: Any, kwargs: Any) -> Any:
    onto, source = args[0], args[1]
    if isinstance(onto, DeviceTensor) and not isinstance(source, DeviceTensor):
        free = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        if source.dim() and not (free and getattr(source, "pinned", False)):
            _wait("copy from pageable memory")
    elif not isinstance(onto, DeviceTensor):
        _wait(_COPIES_TO_HOST)
    _held(onto).copy_(_held(source))
    return onto


def _check_index(func: Any, args: Any) -> None:
    """Whether an index waits: one of the host's is sent, and of truth values the true ones are counted."""
    if not isinstance(args[0], DeviceTensor):
        raise RuntimeError(f"indices should be either on cpu or on the same device, at {_line()}")
    for index in args[1]:
        if isinstance(index, DeviceTensor):
            if index.dtype in (torch.bool, torch.uint8):
                _wait("boolean index")
        elif index is not None:
            _wait("index of the host")
    if len(args) > 2 and isinstance(args[2], Tensor) and not isinstance(args[2], DeviceTensor) and args[2].dim():
        raise RuntimeError(f"expected the values to be on the device of what is indexed, at {_line()}")
