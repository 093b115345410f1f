"""What a pass over a tree is asked for besides logits: states of layers, extra rows, a look between two layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Rider:
    """An extra row that a drafter attaches to the target's own pass, so that its next proposal costs no pass.

    The row attends to the prefix, to its parent node's path, and to the riders it comes after.

    Args:
        parent: the node it hangs below.
        embedding: (d,) what stands in for a token's embedding (a mask or prompt embedding).
        after: index of the rider it follows, or None where it follows the node itself.
    """

    parent: int
    embedding: Tensor
    after: int | None = None


OnLayer = Callable[[int, Tensor, Sequence[int]], Collection[int] | None]
"""Called after each layer with (layer, hidden states (R, d) of the rows read, their nodes).

Returns the nodes that stay, or None to only look. A node that goes takes its subtree with it; the root stays."""
