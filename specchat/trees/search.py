"""The search for the N guesses of most worth: ask about the best nodes, until nothing they could bring would stay."""

from __future__ import annotations

import heapq
import sys

from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, TokenTree
from specchat.trees.growth import Growth

_FEW = 4
"""Nodes per call where calls are cheap: fewer guesses that come to nothing, for a few more calls."""


def search(growth: Growth, drafter: Drafter, width: int, batch: int = 0, calls: int = sys.maxsize) -> TokenTree:
    """The frozen tree of the guesses of most worth.

    Args:
        growth: the root alone; it knows what a guess is worth and how many may stay.
        width: children a node may get.
        batch: nodes per call, those of most worth; 0: all that may have children where a call costs a pass, else a few.
        calls: how often the drafter may be asked.
    """
    unasked = [ROOT] if width > 0 else []
    passes, few = drafter.passes, batch
    while calls and (unasked := growth.that_may_have_children(unasked)):
        frontier = best(unasked, growth, few)
        asked = set(frontier)
        unasked = [node for node in unasked if node not in asked]
        unasked += growth.consider_all(frontier, growth.ask(drafter, frontier, width), width)
        calls -= 1
        if drafter.passes == passes:
            few = batch or _FEW  # asking costs no pass of a model, so ask about no more than needed
    return growth.best_tree()


def best(nodes: list[int], growth: Growth, count: int) -> list[int]:
    """The `count` nodes of most worth, in their order; all of them where `count` is 0."""
    if count == 0 or len(nodes) <= count:
        return nodes
    return sorted(heapq.nlargest(count, nodes, key=growth.worth))
