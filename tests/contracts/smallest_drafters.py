"""Drafters, each the smallest that needs one capability of the seams."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from specchat.core.context import Context
from specchat.core.request import Adapter, ExtraRow
from specchat.core.round import Round
from specchat.core.seams import Drafter, Proposal
from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.drafters.choice import choose
from specchat.drafters.combine import MemberGroup
from specchat.drafters.members import Member, parse_members
from specchat.drafters.options import trained_weights
from specchat.drafters.parts import Parts
from specchat.registry import NoOptions, option
from specchat.settings import Settings


def chain_of(tree: TokenTree, frontier: Sequence[int], tokens: Sequence[int], name: str) -> list[list[Guess]]:
    """A written continuation, handed out level by level along its own path."""

    def guesses(node: int) -> list[Guess]:
        depth = tree.depths[node]
        on_path = depth < len(tokens) and tree.path_tokens(node) == list(tokens[:depth])
        return [Guess(tokens[depth], proposer=name)] if on_path else []

    return [guesses(node) for node in frontier]


@dataclass(frozen=True)
class StatefulOptions:
    layer: int = option(0, "whose states it takes", minimum=0)


class Stateful(Drafter):
    """Keeps the states of the whole text, and guesses what the target's own head reads from the last of them."""

    def __init__(self, options: StatefulOptions, parts: Parts) -> None:
        self._head = parts.target.head
        self.layer = options.layer
        self.hidden_state_sink = HiddenStateSink(frozenset({options.layer}), self._take)
        self.tokens: list[int] = []
        self.states: list[Tensor] = []
        self.given: list[tuple[int, int]] = []  # (first, end) of every delivery

    def _take(self, states: TextStates) -> None:
        assert set(states.layers) == {self.layer}, "only what was asked for"
        assert states.first <= len(self.tokens), "no gap"
        assert states.layers[self.layer].shape[0] == len(states.tokens) > 0
        del self.tokens[states.first :], self.states[states.first :]
        self.tokens += states.tokens
        self.states += list(states.layers[self.layer])
        self.given.append((states.first, states.end))

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        if not self.states:
            return [() for _ in frontier]
        best = self._head(self.states[-1][None])[0].topk(width).indices.tolist()
        return [[Guess(token, proposer="stateful") for token in best] for _ in frontier]


class Stateful2(Stateful):
    """Another of the kind, so that two may be merged."""


@dataclass(frozen=True)
class TrainedOptions(StatefulOptions):
    weights: str = trained_weights()


class Trained(Stateful):
    """Reads the last state with a head of its own, from a verified file."""

    def __init__(self, options: TrainedOptions, parts: Parts) -> None:
        super().__init__(options, parts)
        assert parts.trained is not None, "the table says that it needs weights"
        self.trained = parts.trained
        weight = load_file(parts.trained.weights)["weight"]
        self._head = lambda states: states.float() @ weight.t()


@dataclass(frozen=True)
class RidingOptions:
    length: int = option(2, "extra rows behind every node", minimum=1)
    adapted: bool = option(False, "whether an adapter acts on them")


class Riding(Drafter):
    """Mask-like rows ride behind every node of the target's pass; what they say is the next proposal."""

    def __init__(self, options: RidingOptions, parts: Parts) -> None:
        self.mask = parts.target.embed([0])[0]
        self.length = options.length
        made = torch.Generator().manual_seed(0)
        down, up = (0.2 * torch.randn(*shape, generator=made) for shape in ((2, 32), (32, 2)))
        self.adapter = Adapter({(0, "q"): (down, up), (1, "o"): (down, up)}) if options.adapted else None
        self._next: list[int] = []

    def start(self, history: Sequence[int]) -> None:
        self._next = []

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        return chain_of(tree, frontier, self._next, "riding")

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        places = [place if place else None for _ in tree.tokens for place in range(self.length)]
        after = [None if place is None else index - 1 for index, place in enumerate(places)]
        return [ExtraRow(i // self.length, self.mask, before, self.adapter) for i, before in enumerate(after)]

    def observe(self, round: Round) -> None:
        if round.extra_rows:
            last = ([ROOT, *round.tree.follow(round.emitted)])[-1]
            rows = range(last * self.length, (last + 1) * self.length)
            self._next = [best[0] for best in round.reading.best_after_extra_rows(rows, 1)]


class _Drafting(Drafter):
    """Drafts with a model made from the target, as `draft_model` drafts with another."""

    def __init__(self, parts: Parts, model: Any) -> None:
        self.model = model
        self._inner = dataclasses.replace(parts, draft_model=model).build(choose("draft_model", Settings()))

    @property
    def passes(self) -> int:
        return self.model.counters.passes

    def start(self, history: Sequence[int]) -> None:
        self._inner.start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        return self._inner.propose(tree, frontier, width, context)

    def observe(self, round: Round) -> None:
        self._inner.observe(round)


class SelfDrafting(_Drafting):
    """The target without an attention and an MLP drafts for the target."""

    def __init__(self, options: NoOptions, parts: Parts) -> None:
        super().__init__(parts, parts.target.view(skip_attention=[1], skip_mlp=[0]))


class PartOfCache(_Drafting):
    """The target with the first and the last few rows of its own cache drafts for the target."""

    def __init__(self, options: NoOptions, parts: Parts) -> None:
        super().__init__(parts, parts.target.with_new_cache())

    def start(self, history: Sequence[int]) -> None:
        text = history[:-1]
        self.model.copy_rows_from(text, [*range(min(2, len(text))), *range(max(2, len(text) - 6), len(text))])
        super().start(history)


class Nested(Drafter):
    """A whole engine over a thinner target writes ahead, with draws whose law is known."""

    @classmethod
    def draw_kinds(cls, options: NoOptions, members: Sequence[Collection[DrawKind]]) -> frozenset[DrawKind]:
        return frozenset({DrawKind.POINT, DrawKind.IID})

    def __init__(self, options: NoOptions, parts: Parts) -> None:
        self.model = parts.target.view(layers=range(parts.target.layers - 1))
        self._engine = parts.engine({"drafter": "prompt_lookup", "nodes": 2, "depth": 2, "width": 1}, self.model)
        self._noise = parts.noise
        self._written: list[Guess] = []

    @property
    def passes(self) -> int:
        return self.model.counters.passes

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        if list(frontier) == [ROOT]:
            self._written = self._write(context, 3)
        tokens = [guess.token for guess in self._written]
        chain = chain_of(tree, frontier, tokens, "nested")
        return [[self._written[tree.depths[node]]] if one else [] for node, one in zip(frontier, chain, strict=True)]

    def _write(self, context: Context, count: int) -> list[Guess]:
        """So many guesses, drawn by the inner engine with noise that belongs to this drafter and this round."""
        noise = self._noise(context.noise).child(str(context.round))
        inner = Context(list(context.history), context.prompt_tokens, context.vocab_size, context.sampling, noise)
        self._engine.start(inner.history)
        draws = context.wanted is DrawKind.IID and not context.sampling.greedy
        written: list[Guess] = []
        while len(written) < count:
            before = dataclasses.replace(inner, history=list(inner.history))
            round = self._engine.round(inner)
            for node, token in zip((ROOT, *round.verdict.path), round.emitted, strict=True):
                law = before.law_after(round.tree, node, round.reading.after(node))
                q = law.dense(context.vocab_size) if draws else None
                written.append(Guess(token, DrawKind.IID if draws else DrawKind.POINT, q, proposer="nested"))
        return written[:count]


@dataclass(frozen=True)
class FirstOptions:
    of: str = option("prompt_lookup,suffix", "drafters that are asked in turn")

    @property
    def members(self) -> tuple[Member, ...]:
        return parse_members("of", self.of)


class First(MemberGroup):
    """Asks its members in turn about each node; the first that has a guess answers."""

    @classmethod
    def draw_kinds(cls, options: FirstOptions, members: Sequence[Collection[DrawKind]]) -> Collection[DrawKind]:
        return set().union(*members)

    def __init__(self, options: FirstOptions, parts: Parts) -> None:
        super().__init__(parts.members())

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        said: dict[int, Sequence[Guess]] = dict.fromkeys(frontier, ())
        for member in self.members:
            if nodes := [node for node in frontier if not said[node]]:
                said |= zip(nodes, member.propose(tree, nodes, width, context), strict=True)
        return [said[node] for node in frontier]


class Silent(MemberGroup):
    """The same wrapper, which does not say what its draws are worth."""

    def __init__(self, options: FirstOptions, parts: Parts) -> None:
        super().__init__([First(options, parts)])

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        return self.members[0].propose(tree, frontier, width, context)
