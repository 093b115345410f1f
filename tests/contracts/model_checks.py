"""Checks that contract tests of models share: what a pass says is compared with plain passes over each path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from contracts.models import Subject, V

from specchat.core.reading import Reading
from specchat.core.seams import Model
from specchat.core.tree import ROOT, TokenTree

PREFIX = [1, 7, 30, 7, 2, 59, 14, 7, 30, 11, 5, 5, 41]
CLOSE = {"atol": 2e-4, "rtol": 2e-4}


def check(subject: Subject, reading: Reading, prefix: Sequence[int], tree: TokenTree, nodes: Iterable[int]) -> None:
    """Every node says what a plain pass over prefix, root and path says. (Leaves first: their pass says it all.)"""
    for node in sorted(nodes, reverse=True):
        text = [*prefix, tree.tokens[ROOT], *tree.path_tokens(node)]
        torch.testing.assert_close(reading.after(node).float(), subject.truth(text), **CLOSE)


def check_next(subject: Subject, model: Model, text: Sequence[int]) -> None:
    """The model, going on after `text`, says what a plain pass says: its cache holds what it should."""
    model.prefill(text[:-1])
    tree = TokenTree(text[-1], V).freeze()
    torch.testing.assert_close(model.read(tree).after(ROOT).float(), subject.truth(text), **CLOSE)
    model.keep(())


def deepest(tree: TokenTree) -> tuple[int, ...]:
    """The last of the longest paths: its rows lie scattered."""
    return tree.path(max(range(len(tree)), key=lambda node: (tree.depths[node], node)))
