"""The token that the target draws after a row of logits: what every rule that follows the target's own noise emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from specchat.core.native_draw import native_draw, takes
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Counts, Sampling, law, penalise

_NOTHING_SAID = Counts()


class RowInMemory(NamedTuple):
    """A row of logits that compiled code can read. A tensor is made of it only where torch is to judge.

    Args:
        width: V.
        address: of (V,) float32, on the host.
        tensor: makes the same (V,) logits as a tensor.
    """

    width: int
    address: int
    tensor: Callable[[], Tensor]


def draw_token(
    logits: Tensor | RowInMemory,
    sampling: Sampling,
    noise: Noise,
    position: int,
    counts: Counts = _NOTHING_SAID,
    path: Sequence[int] = (),
) -> int:
    """The target's token at a position: one draw from the law of its penalised logits with the target stream's noise.

    In C where that is there, which makes the same decisions up to rounding. Which of the two draws depends on the
    machine and the format of the logits, never on the tree. Synchronises with the device.

    Args:
        logits: (V,) raw.
        path: tokens drafted since the history ended, down to the node whose logits these are.
    """
    in_memory = _in_memory(logits) if isinstance(logits, Tensor) else logits
    if in_memory is not None and (native := native_draw(in_memory.width)) is not None:
        token = native.draw(in_memory.address, sampling, counts, path, noise.key(Stream.TARGET, position))
        if token is not None:
            return token
    logits = logits if isinstance(logits, Tensor) else logits.tensor()
    return law(penalise(logits, sampling, counts, path), sampling).draw(noise, Stream.TARGET, position)


def _in_memory(logits: Tensor) -> RowInMemory | None:
    """Where (V,) logits lie that C can read."""
    return RowInMemory(logits.numel(), logits.data_ptr(), lambda: logits) if takes(logits) else None
