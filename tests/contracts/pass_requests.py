"""Requests for a pass, and what looks into one after every layer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.request import ExtraRow, LayerHook, PassRequest
from specchat.core.round import Round
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import TokenTree


def requested(extra_rows: Sequence[ExtraRow] = (), taps: Collection[int] = (), look: Any = None) -> PassRequest:
    """A request; `look` is called after every layer there may be."""
    hooks = () if look is None else (LayerHook(frozenset(range(64)), look),)
    return PassRequest(frozenset(taps), tuple(extra_rows), hooks)


class LookedInto(TreePolicy):
    """A tree policy whose trees' passes are looked into after every layer."""

    def __init__(self, policy: TreePolicy, look: Any) -> None:
        self._policy, self._hooks = policy, requested(look=look).hooks

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        return self._policy.grow(drafter, context, budget)

    def observe(self, round: Round) -> None:
        self._policy.observe(round)

    def hooks(self, tree: TokenTree) -> Sequence[LayerHook]:
        return self._hooks
