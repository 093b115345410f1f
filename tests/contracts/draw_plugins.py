"""Test-only drafters and rules about draws: right ones, and wrong ones that a test must catch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.reading import Reading
from specchat.core.round import Round, Verdict
from specchat.core.sampling import law, penalise
from specchat.core.seams import AcceptanceRule, Drafter, Proposal, TreePolicy
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree


class Residual(AcceptanceRule):
    """The rule that uses draft probabilities, as one recursion over the draws of a node.

    r = p. The sampled draws in order: accept x with probability min(1, r(x) / g(x)), else r = norm((r − g)+), where
    g is q for independent draws, and q without the proposer's earlier draws for draws without replacement. Then one
    draw from what remains: a point with that token stands, otherwise it is the bonus.
    """

    def __init__(self, wanted: DrawKind, lossless: bool = True) -> None:
        self.wanted = wanted
        self.lossless = lossless

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        path: list[int] = []
        node = ROOT
        while True:
            child, token = self._step(tree, node, reading, context)
            if child is None or child not in reading.alive:
                return Verdict(tuple(path), token, tree, reading.pruned)
            path.append(child)
            node = child

    def _step(self, tree: TokenTree, node: int, reading: Reading, context: Context) -> tuple[int | None, int]:
        position = context.position(tree, node)
        r = context.law_after(tree, node, reading.after(node)).dense(context.vocab_size)
        gone: dict[str, list[int]] = {}
        for place, draw in enumerate(tree.draws(node)):
            guess = draw.guess
            if guess.kind is DrawKind.POINT:
                continue
            assert guess.q is not None, "a sampled draw carries its q"
            g = guess.q.clone()
            if guess.kind is DrawKind.WOR:
                g[gone.get(guess.proposer, [])] = 0
                g /= g.sum()
                gone.setdefault(guess.proposer, []).append(guess.token)
            x = guess.token
            if self._coin(context, position, x, place) * float(g[x]) < float(r[x]):
                return draw.child, x
            r = (r - g).clamp(min=0)
            r /= r.sum()
        token = self._rest(r, context, position)
        return tree.child(node, token), token

    def _coin(self, context: Context, position: int, token: int, place: int) -> float:
        return context.noise.uniform(Stream.ACCEPT, position, token, (place,))

    def _rest(self, r: Tensor, context: Context, position: int) -> int:
        scores = r.log() + context.noise.gumbel(Stream.TARGET, position, torch.arange(r.numel()))
        return int(scores.argmax())


class StaleCoins(Residual):
    """Wrong on purpose: the coins are drawn once and used again in every round."""

    def _coin(self, context: Context, position: int, token: int, place: int) -> float:
        return context.noise.uniform(Stream.ACCEPT, 0, 0, ())


class ForgetsResidual(Residual):
    """Wrong on purpose: after a rejection it draws from p again instead of the residual."""

    def _step(self, tree: TokenTree, node: int, reading: Reading, context: Context) -> tuple[int | None, int]:
        child, token = super()._step(tree, node, reading, context)
        if child is not None:
            return child, token
        p = context.law_after(tree, node, reading.after(node)).dense(context.vocab_size)
        token = self._rest(p, context, context.position(tree, node))
        return None, token


class OneDraw(AcceptanceRule):
    """Wrong on purpose: follows, but with the noise of one position for all of them."""

    lossless = True

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        token = context.law_after(tree, ROOT, reading.after(ROOT)).draw(context.noise, Stream.TARGET, 0)
        child = tree.child(ROOT, token)
        path = () if child is None else (child,)
        if child is None:
            return Verdict((), token, tree)
        bonus = context.law_after(tree, child, reading.after(child)).draw(context.noise, Stream.TARGET, 0)
        return Verdict(path, bonus, tree)


class ArgmaxFirst(AcceptanceRule):
    """Wrong on purpose: the first token after the prompt is the most likely one at any temperature."""

    lossless = True

    def __init__(self, rule: AcceptanceRule) -> None:
        self._rule = rule

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        if context.round > 0:
            return self._rule.judge(tree, reading, context)
        token = int(reading.after(ROOT).argmax())
        child = tree.child(ROOT, token)
        path = () if child is None else (child,)
        return Verdict(path, token, tree) if child is None else Verdict(path, None, tree)


class SamplingDrafter(Drafter):
    """Draws children from its law and says so; every way to lie about it is an option.

    Args:
        stream: where its noise comes from; sharing the target's is the classic mistake.
        misreport: a q to report instead of the one drawn from.
        points: (tree, node) → point guesses to put beside the draws, before them.
        redraw: draws until all are different and still calls them independent.
    """

    def __init__(
        self,
        says: Callable[[Sequence[int]], Tensor],
        stream: Stream = Stream.DRAFT,
        misreport: Callable[[Tensor], Tensor] | None = None,
        points: Callable[[TokenTree, int], Sequence[int]] | None = None,
        redraw: bool = False,
        name: str = "sampling",
    ) -> None:
        self._says, self._stream, self._misreport = says, stream, misreport
        self._points, self._redraw, self._name = points, redraw, name

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        return [self._guesses(tree, node, width, context) for node in frontier]

    def _guesses(self, tree: TokenTree, node: int, width: int, context: Context) -> list[Guess]:
        path = tree.path_tokens(node)
        logits = penalise(self._says([*context.history, *path]), context.sampling, context.counts, path)
        q_law = law(logits, context.sampling)
        q = q_law.dense(context.vocab_size)
        position = context.position(tree, node)
        shared = self._stream is Stream.TARGET
        salt = () if shared else (context.round, node, len(self._name))
        if context.wanted is DrawKind.WOR:
            tokens = q_law.best(width, context.noise, self._stream, position, salt).tolist()
        else:
            tokens, draw = [], 0
            while len(tokens) < width:
                salted = () if shared else (*salt, draw)
                token, draw = q_law.draw(context.noise, self._stream, position, salted), draw + 1
                if not (self._redraw and token in tokens and draw < 50):
                    tokens.append(token)
        reported = self._misreport(q) if self._misreport is not None else q
        points = [Guess(t, proposer="points") for t in (self._points(tree, node) if self._points else ())]
        return [*points, *(Guess(t, context.wanted, reported, proposer=self._name) for t in tokens)]


class Together(Drafter):
    """Several drafters at once: their guesses stand side by side, and share a node where they agree."""

    def __init__(self, *drafters: Drafter) -> None:
        self._drafters = drafters

    def start(self, history: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        proposals = [drafter.propose(tree, frontier, width, context) for drafter in self._drafters]
        return [[guess for guesses in each for guess in guesses] for each in zip(*proposals, strict=True)]

    def observe(self, round: Round) -> None:
        for drafter in self._drafters:
            drafter.observe(round)


class AllOfThem(TreePolicy):
    """A tree policy that gives every guess a place, so many levels deep: the law of the draws stays what it is."""

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        tree, frontier = TokenTree(context.root, context.vocab_size), [ROOT]
        for _ in range(budget.depth if budget.nodes else 0):
            following: list[int] = []
            for parent, guesses in zip(frontier, drafter.propose(tree, frontier, budget.width, context), strict=True):
                for guess in guesses:
                    size = len(tree)
                    child = tree.add(parent, guess)
                    following += [child] if child == size else []
            frontier = following
        return tree.freeze()
