"""Requests for a pass, and what looks into one after every layer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from specchat.core.request import ExtraRow, LayerHook, PassRequest
from specchat.core.seams import TreePolicy
from specchat.core.tree import TokenTree


def requested(extra_rows: Sequence[ExtraRow] = (), taps: Collection[int] = (), look: Any = None) -> PassRequest:
    """A request; `look` is called after every layer there may be."""
    hooks = () if look is None else (LayerHook(frozenset(range(64)), look),)
    return PassRequest(frozenset(taps), tuple(extra_rows), hooks)


class LookedInto:
    """A tree policy whose trees' passes are looked into after every layer."""

    taps: Sequence[int] = ()

    def __init__(self, policy: TreePolicy, look: Any) -> None:
        self.grow, self.observe, self._hooks = policy.grow, policy.observe, requested(look=look).hooks

    def hooks(self, tree: TokenTree) -> Sequence[LayerHook]:
        return self._hooks
