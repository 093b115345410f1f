"""The token that the target draws after a row of logits: what every rule that follows the target's own noise emits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specchat.core.head_output import RowInMemory
from specchat.core.native_draw import native_draw, takes
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Counts, Sampling, law, penalise

_NOTHING_SAID = Counts()


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
        logits: (V,) raw, or where they lie.
        path: tokens drafted since the history ended, down to the node whose logits these are.
    """
    row = _in_memory(logits) if isinstance(logits, Tensor) else logits
    if row is not None and (native := native_draw(row.width)) is not None:
        token = native.draw(row.address, sampling, counts, path, noise.key(Stream.TARGET, position))
        if token is not None:
            return token
    logits = logits if isinstance(logits, Tensor) else logits.tensor()
    return law(penalise(logits, sampling, counts, path), sampling).draw(noise, Stream.TARGET, position)


def _in_memory(logits: Tensor) -> RowInMemory | None:
    """Where (V,) logits lie; None where C cannot read them."""
    return RowInMemory(logits.data_ptr(), logits.numel(), lambda: logits) if takes(logits) else None
