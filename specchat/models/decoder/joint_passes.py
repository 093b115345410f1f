"""Trees of several texts in one pass: which of them can be read together, and in which groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specchat.core.reading import Reading
from specchat.core.request import PassRequest
from specchat.core.seams import Model
from specchat.core.tree import TokenTree
from specchat.models.decoder.cached_model import CachedModel

TextTree = tuple[Model, TokenTree, PassRequest]
"""The model that holds a text, a tree behind the text, and what is asked of the pass over it."""

_SPARE = 0.25
"""Padding that a group of texts may have, as a share of its work."""


def read_together(trees: Sequence[TextTree]) -> Iterator[dict[int, Reading]]:
    """Read whole trees of several texts, each with a model of its own over the same weights, in few passes.

    What is said of a text is what `read` of its model says.

    Yields:
        The readings of each pass of two texts or more, by their place among the trees. Trees that need hooks, extra
        rows or a head of their own, and those that no other can be read with, are not read.

    Raises:
        NotNumbers: as `Decoder.read` does, of some of the texts of a pass. Each may be read again.
    """
    pools: dict[int, list[tuple[int, CachedModel[Any], Any]]] = {}
    for place, (model, tree, request) in enumerate(trees):
        special = request.head is not None or request.hooks or request.extra_rows
        if isinstance(model, CachedModel) and not special and (weights := model.joint_weights) is not None:
            pools.setdefault(id(weights), []).append((place, model, model.planned(tree, request)))
    for pool in pools.values():
        for group in pool[0][1].joint_groups([planned for *_, planned in pool]):
            if len(group) < 2:
                continue
            members = [pool[number] for number in sorted(group)]
            needs = [trees[place][2].needs for place, *_ in members]
            readings = members[0][1].read_joined([(model, planned) for _, model, planned in members], needs)
            yield dict(zip([place for place, *_ in members], readings, strict=True))


def groups_of_equal_lengths(sizes: Sequence[tuple[int, int]], row_work: int) -> list[list[int]]:
    """Places of texts that are read in one pass where all texts of a pass must be equally long.

    Texts of equal lengths come together first. Others join them, padded, where that costs little more work.

    Reference: EXSPEC in "Batch Speculative Decoding Done Right", arXiv:2510.22876. Differs: a round is read whole, so
    no text waits for another of its length.

    Args:
        sizes: rows, and rows of the cache that these attend to, of each text.
        row_work: what a row takes besides attention, in rows that are attended to.
    """

    def work(rows: int, seen: int) -> int:
        return rows * (seen + row_work)

    groups: list[list[int]] = []
    exact = widest = longest = 0  # of the last group
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place]):
        rows, seen = sizes[place]
        exact, widest, longest = exact + work(rows, seen), max(widest, rows), max(longest, seen)
        if groups and (len(groups[-1]) + 1) * work(widest, longest) <= (1 + _SPARE) * exact:
            groups[-1].append(place)
        else:
            groups.append([place])
            exact, widest, longest = work(rows, seen), rows, seen
    return groups
