"""Several texts read together: each in cache rows of its own, all in one pass over the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from specchat.core.reading import Counters, HeadOutput
from specchat.models.base.cache_rows import OwnRows, Plan
from specchat.models.base.kv_cache import KVCache
from specchat.models.base.network import Pass
from specchat.models.base.sub_layers import SubLayers
from specchat.models.decoder.decoder import Decoder

_TOGETHER = 32
"""A text's rows begin at a multiple of this, so that no two texts share a block of keys."""


class TextBatch:
    """Reads texts with a decoder's weights. What is said of a text is what would be said if it were read alone.

    A text is known by its number. Its rows see its own rows only, at the positions that they have in it.
    """

    def __init__(self, decoder: Decoder, texts: int, longest_tokens: int) -> None:
        """No text read yet.

        Args:
            texts: how many there may be at a time.
            longest_tokens: room for each of them.
        """
        self.network = decoder.network
        self.counters = Counters()
        self.longest_tokens = min(longest_tokens, decoder.context_tokens)
        self._tables = decoder.rotations.until(self.longest_tokens)
        self._parts = SubLayers.of_all(self.network.shape.layers)
        self._room = -(-self.longest_tokens // _TOGETHER) * _TOGETHER
        self._held = [0] * texts
        together, copies = self.network.key_interleave, self.network.row_copies
        self._cache = KVCache(self._parts.attention, texts * self._room, together, copies)

    def held(self, text: int) -> int:
        """How many tokens of a text were read."""
        return self._held[text]

    def rewind(self, text: int, tokens: int) -> None:
        """Forget all but the first tokens of a text."""
        self._held[text] = min(tokens, self._held[text])

    @torch.inference_mode()
    def read(self, more: Mapping[int, Sequence[int]]) -> HeadOutput:
        """Read on in some texts, in one pass.

        Args:
            more: text → its next tokens, at least one.

        Returns:
            What follows the last token of each of these texts, in their order.
        """
        plan = self._plan(more)
        self.counters.passes += 1
        self.counters.rows += len(plan.tokens)
        network = self.network
        hidden = network.run(Pass(plan, network.embed, self._tables, self._cache, self.counters, self._parts))
        for text, tokens in more.items():
            self._held[text] += len(tokens)
        last = torch.tensor([len(tokens) for tokens in more.values()]).cumsum(0) - 1
        return network.head(hidden[last.to(hidden.device)])

    def _plan(self, more: Mapping[int, Sequence[int]]) -> Plan:
        positions: list[int] = []
        places: list[int] = []
        for text, tokens in more.items():
            first, last = self._held[text], self._held[text] + len(tokens)
            assert first < last <= self.longest_tokens, f"{last} tokens of a text, and room for {self.longest_tokens}"
            positions += range(first, last)
            places += range(text * self._room + first, text * self._room + last)
        mask = np.zeros((len(places), max(places) + 1), dtype=np.bool_)
        for row, (position, place) in enumerate(zip(positions, places, strict=True)):
            mask[row, place - position : place + 1] = True
        every = [token for tokens in more.values() for token in tokens]
        return Plan(0, 0, (), every, 0, (), 0, own=OwnRows(positions, places, torch.from_numpy(mask)))
