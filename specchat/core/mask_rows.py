"""What rows behind a node are made of that guess, in the target's own pass, the tokens after the next one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specchat.core.request import Adapter


@dataclass(frozen=True, eq=False)
class MaskRows:
    """Trained masks: stand-ins for the embeddings of tokens that are not known yet.

    Args:
        embeddings: (d,) of each mask, the nearest place first.
        adapter: what is added to the target's products for these rows alone, where anything is.
    """

    embeddings: tuple[Tensor, ...]
    adapter: Adapter | None = None
