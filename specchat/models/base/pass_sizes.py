"""What a pass takes where torch computes it, one operation after another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassSizes:
    """Sizes of a decoder, as far as the memory of its passes depends on them.

    Args:
        element: bytes of a number.
        masks: how many kinds of attention there are, each with a mask of its own.
    """

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    element: int
    masks: int = 1

    def bytes(self, rows: int, seen: int, logits: bool) -> int:
        """The most at once: in the layers, with the masks they add to scores, or in the head.

        Args:
            rows: of the pass.
            seen: cache rows that they attend to, themselves included.
            logits: whether the head is computed.
        """
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 3 * queries + 2 * keys + self.heads * seen  # with the scores, where they are kept
        added = self.masks * seen * self.heads // self.kv_heads
        layers = 3 * self.hidden + max(attention, 3 * self.inner) + added
        head = 2 * self.hidden + self.vocab_size if logits else 0
        return rows * (max(layers, head) * self.element + self.masks * seen)
