"""Counts the bytes of all tensors that live at the same time, as they are made."""

from __future__ import annotations

import gc
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorBytes(TorchDispatchMode):
    """While it is entered: `held` now and at the `peak`, of tensors that are made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        tensors = (thing for thing in gc.get_objects() if type(thing) in (Tensor, Parameter))
        before = (tensor.untyped_storage() for tensor in tensors if not tensor.is_mkldnn)
        # Once one of these is gone, another may come to lie where it was.
        self._before = {storage._cdata: StorageWeakRef(storage) for storage in before}
        self._living: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    @property
    def held(self) -> int:
        self._living = {key: (ref, size) for key, (ref, size) in self._living.items() if not ref.expired()}
        return sum(size for _, size in self._living.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        grown = False
        for tensor in [out] if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.device.type == "cpu" and not tensor.is_mkldnn:  # has no storage
                storage = tensor.untyped_storage()
                before = self._before.get(storage._cdata)
                if before is None or before.expired():
                    known, size = self._living.get(storage._cdata), storage.nbytes()
                    if known is None or known[1] != size or known[0].expired():
                        self._living[storage._cdata] = StorageWeakRef(storage), size
                        grown = True
        if grown:  # else it may have shrunk, and all would be looked at for nothing
            self.peak = max(self.peak, self.held)
        return out
