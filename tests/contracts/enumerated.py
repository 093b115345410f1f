"""The exact law of a text after a round: every tree that can grow, every draw and every coin, enumerated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specchat.bench.rule_table import Ends, judged
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree

Path = tuple[int, ...]
"""Tokens below the root."""

Step = tuple[int, DrawKind, str] | tuple[int, int]
"""The next draw: its parent, kind and proposer. Or the next point: its parent and token."""

Grows = Callable[[TokenTree], Step | None]
"""What comes next, given everything drawn so far; None when the tree is complete."""

Places = Sequence[tuple[int, Guess]]


def chain(depth: int, kind: DrawKind = DrawKind.IID, name: str = "q") -> Grows:
    return lambda tree: (len(tree) - 1, kind, name) if tree.drafted < depth else None


def levels(kind: DrawKind, *widths: int, names: str = "q") -> Grows:
    """So many draws below every node of each depth, breadth first."""

    def grows(tree: TokenTree) -> Step | None:
        for node in range(len(tree)):
            if tree.depths[node] < len(widths) and (done := len(tree.draws(node))) < widths[tree.depths[node]]:
                return node, kind, names[done % len(names)]
        return None

    return grows


@dataclass(frozen=True)
class Enumerated:
    """A target and drafters of a few tokens.

    Args:
        length: of the texts whose law is computed.
        p: path → (V,) float64, the target's law after it.
        q: (proposer, path) → (V,) float64, a drafter's.
    """

    vocab_size: int
    length: int
    p: Callable[[Path], Tensor]
    q: Callable[[str, Path], Tensor]

    def built(self, places: Places) -> TokenTree:
        tree = TokenTree(0, self.vocab_size)
        for parent, guess in places:
            tree.add(parent, guess)
        return tree

    def grown(self, grows: Grows, places: Places = ()) -> Iterator[tuple[float, TokenTree]]:
        """Every tree that can grow, with its probability."""
        tree = self.built(places)
        step = grows(tree)
        if step is None:
            yield 1.0, tree.freeze()
            return
        if len(step) == 2:
            yield from self.grown(grows, (*places, (step[0], Guess(step[1], proposer="point"))))
            return
        parent, kind, name = step
        q = self.q(name, tuple(tree.path_tokens(parent)))
        g = q.clone()
        if kind is DrawKind.WOR:
            g[[d.guess.token for d in tree.draws(parent) if d.guess.proposer == name]] = 0.0
            if float(g.sum()) == 0.0:  # nothing is left to draw: the tree is complete
                yield 1.0, tree.freeze()
                return
            g /= g.sum()
        for token, chance in enumerate(g.tolist()):
            if chance > 0.0:
                for weight, whole in self.grown(grows, (*places, (parent, Guess(token, kind, q, proposer=name)))):
                    yield chance * weight, whole

    def text_law(self, tree: TokenTree, ends: Ends, dropped: Sequence[int] = ()) -> Tensor:
        """(V,) × length: the law of the text after a round over a tree and plain decoding from there on."""
        found = torch.zeros((self.vocab_size,) * self.length, dtype=torch.float64)

        def law_after(node: int) -> Tensor | None:
            return None if node in dropped else self.p(tuple(tree.path_tokens(node)))

        def plainly(text: Path, weight: float) -> None:
            if len(text) == self.length:
                found[text] += weight
                return
            for token, chance in enumerate(self.p(text).tolist()):
                plainly((*text, token), weight * chance)

        def judge(node: int, weight: float) -> None:
            for probability, (end, after) in ends(tree, node, law_after):
                text = tuple(tree.path_tokens(end))
                if after is None:
                    (plainly(text, weight * probability) if end in dropped else judge(end, weight * probability))
                    continue
                for token, chance in enumerate(after.tolist()):
                    child, reached = tree.child(end, token), weight * probability * chance
                    if child is None or child in dropped or reached == 0.0:
                        plainly((*text, token), reached)
                    else:
                        judge(child, reached)

        judge(ROOT, 1.0)
        return found

    def wanted(self) -> Tensor:
        """(V,) × length: the law of the target's own texts."""
        found = torch.zeros((self.vocab_size,) * self.length, dtype=torch.float64)
        for text in itertools.product(range(self.vocab_size), repeat=self.length):
            found[text] = torch.stack([self.p(text[:at])[token] for at, token in enumerate(text)]).prod()
        return found

    def error(self, grows: Grows, ends: Ends, drops: Callable[[TokenTree], Sequence[int]] = lambda tree: ()) -> float:
        """How far the law of the text is from the target's, over all trees that can grow."""
        total, found = 0.0, torch.zeros((self.vocab_size,) * self.length, dtype=torch.float64)
        for probability, tree in self.grown(grows):
            total += probability
            found += probability * self.text_law(tree, ends, drops(tree))
        assert total == pytest.approx(1.0, abs=1e-12)
        return float((found - self.wanted()).abs().max())

    def expected(self, grows: Grows, ends: Ends) -> float:
        """Tokens a round, in the mean over all trees that can grow."""
        return self.expected_by(grows, lambda tree, laws: judged(tree, laws, ends))

    def expected_by(self, grows: Grows, tokens: Callable[[TokenTree, Callable[[int], Tensor]], float]) -> float:
        def of(tree: TokenTree) -> float:
            return tokens(tree, lambda node: self.p(tuple(tree.path_tokens(node))))

        return sum(probability * of(tree) for probability, tree in self.grown(grows))
