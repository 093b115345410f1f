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
    if isinstance(logits, RowInMemory):
        if (native := native_draw(logits.width)) is not None:
            token = native.draw_from(logits.address, sampling, counts, path, noise.key(Stream.TARGET, position))
            if token is not None:
                return token
        logits = logits.tensor()
    elif takes(logits) and (native := native_draw(logits.numel())) is not None:
        token = native.draw(logits, sampling, counts, path, noise.key(Stream.TARGET, position))
        if token is not None:
            return token
    return law(penalise(logits, sampling, counts, path), sampling).draw(noise, Stream.TARGET, position)
