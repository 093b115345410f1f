"""What a model says whose passes compute all of a network, over a tree alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from specchat.core.request import CHUNK_TOKENS, HeadOfSome, PassRequest
from specchat.errors import CombinationError
from specchat.models.decoder.trimmed_head import PickedLogits, TrimmedHead


class FixedPasses:
    """Refuses views, extra rows, hooks, copies of single rows, and the head by itself."""

    flexible_passes = False
    chunk_bytes = 1 << 62
    runs_in: ClassVar[str]
    """What runs it, as a refusal calls it, …"""
    instead: ClassVar[str]
    """… and where the model runs that can do all this."""

    def chunk_after(self, tokens: int) -> int:
        return CHUNK_TOKENS

    def trimmed_head(self, tokens: Sequence[int]) -> HeadOfSome:
        """A head that picks these tokens' logits out of all of them."""
        return TrimmedHead(PickedLogits, torch.tensor(tokens), tokens, list)

    def view(
        self,
        layers: Collection[int] | None = None,
        skip_attention: Collection[int] = (),
        skip_mlp: Collection[int] = (),
    ) -> NoReturn:
        self._refuse()

    def copy_rows_from(self, tokens: Sequence[int], positions: Sequence[int]) -> NoReturn:
        self._refuse()

    def head(self, hidden: Tensor) -> NoReturn:
        self._refuse()

    def check_request(self, request: PassRequest) -> None:
        """CombinationError: it asks for more."""
        if request.hooks or request.extra_rows:
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise CombinationError(
            f"{self.runs_in} takes no extra rows and leaves nothing out of a pass, which this method needs; nearest "
            f"that works: drafter 'token_recycling', or {self.instead}"
        )
