"""Guesses, and the token tree that they form: a flat list, parents first, and how every child was drawn."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, overload

from torch import Tensor

from specchat.errors import ProposalError

ROOT: Final = 0
"""The root's node number. Its token has been emitted by the target but not read yet."""


class DrawKind(Enum):
    """The guarantee about a draw's distribution.

    `IID` and `WOR` (without replacement) promise: given everything that decided whether this draw happens and
    stays, its token is distributed as the recorded q. Whatever cannot promise that is a `POINT`.
    """

    IID = "iid"
    WOR = "wor"
    POINT = "point"


STORED = 1 << 32
"""Sources of guesses from here on stand in a datastore, not in the text."""


class Guess(NamedTuple):
    """A token that a drafter proposes to put below a node.

    Args:
        kind: what may be said about the draw.
        q: (V,) the distribution it was drawn from, for IID and WOR. A point may carry the drafter's law at its place,
            for rules that compare; that promises nothing about how the token was chosen.
        logprob: log-probability the drafter gives it, where it knows one; for showing and for ordering.
        proposer: the drafter's name.
        source: index in the text of the token it is a copy of, for guesses that are copied from there; from `STORED` on
            a number of a datastore's (see `Drafter.stored_text`). The next token of a source has the next number.
    """

    token: int
    kind: DrawKind = DrawKind.POINT
    q: Tensor | None = None
    logprob: float | None = None
    proposer: str = ""
    source: int | None = None

    def as_point(self) -> Guess:
        """The same guess without a claim about how its token was drawn."""
        return self if self.kind is DrawKind.POINT else self._replace(kind=DrawKind.POINT)


_new_tuple = tuple.__new__


def point(token: int, logprob: float | None, proposer: str, q: Tensor | None = None) -> Guess:
    """A point guess, made quicker than by the class: drafters make thousands in a round. `q`, where given, is (V,)."""
    return _new_tuple(Guess, (token, DrawKind.POINT, q, logprob, proposer, None))


class Draw(NamedTuple):
    """One guess that got a place: `child` is its node. Two guesses of one token share the node and keep both draws."""

    child: int
    guess: Guess


class TokenTree:
    """A token tree of N nodes, the root first. Grows through `add` until it is frozen.

    A node is a number; `tokens[node]`, `parents[node]` (−1 for the root) and `depths[node]` (0 for the root)
    describe it. Siblings always differ in their token.
    """

    def __init__(self, root_token: int, vocab_size: int) -> None:
        self.tokens: list[int] = [root_token]
        self.parents: list[int] = [-1]
        self.depths: list[int] = [0]
        self._vocab_size = vocab_size
        self._child_of: dict[tuple[int, int], int] = {}  # by parent and token
        self._draws: dict[int, list[Draw]] = {}  # by parent, where there are any
        self._unwritten: Iterable[Guess] = ()  # of every draft node, where its draw is not written down yet
        self.frozen = False  # whether it is complete: nothing can be added any more

    @classmethod
    def of_points(
        cls, root_token: int, vocab_size: int, parents: Sequence[int], tokens: Sequence[int], guesses: Iterable[Guess]
    ) -> TokenTree:
        """The frozen tree of nodes with these parents and tokens, parents first, of one point guess each.

        Guesses are made when draws are asked for: greedy rounds that nobody looks at never do.

        Raises:
            ProposalError: a guess is outside the vocabulary.
        """
        tree = cls(root_token, vocab_size)
        if tree._lacks_some(tokens):
            for parent, guess in zip(parents, guesses, strict=True):
                tree.add(parent, guess)
        tree._append(parents, tokens)
        tree._unwritten = guesses
        tree.frozen = True
        return tree

    def __len__(self) -> int:
        """N: nodes with the root."""
        return len(self.tokens)

    @property
    def drafted(self) -> int:
        return len(self.tokens) - 1

    def add(self, parent: int, guess: Guess) -> int:
        """Put a guess below `parent` and return its node: a new one, or the child that already has this token.

        Raises:
            ProposalError: the guess is outside the vocabulary.
        """
        assert not self.frozen, "a frozen tree does not grow"
        token = guess[0]
        if not 0 <= token < self._vocab_size:
            who = guess.proposer or "a drafter"
            raise ProposalError(f"{who} proposed token {token}, outside the vocabulary of {self._vocab_size}")
        number = len(self.tokens)
        child = self._child_of.setdefault((parent, token), number)
        if child == number:
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
        draw = _new_tuple(Draw, (child, guess))
        draws = self._draws.get(parent)
        if draws is None:
            self._draws[parent] = [draw]
        else:
            draws.append(draw)
        return child

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> Sequence[int]:
        """Add new nodes, parents first, of which nobody asks how they were drawn; returns them.

        Raises:
            ProposalError: a token is outside the vocabulary.
        """
        assert not self.frozen, "a frozen tree does not grow"
        if self._lacks_some(tokens):
            outside = next(token for token in tokens if not 0 <= token < self._vocab_size)
            raise ProposalError(f"a node of token {outside}, outside the vocabulary of {self._vocab_size}")
        return self._append(parents, tokens)

    def freeze(self) -> TokenTree:
        self.frozen = True
        return self

    def child(self, node: int, token: int) -> int | None:
        return self._child_of.get((node, token))

    def children(self, node: int) -> Sequence[int]:
        """The children of `node`, in the order they were first proposed."""
        return tuple(dict.fromkeys(draw.child for draw in self.draws(node)))

    def draws(self, parent: int) -> Sequence[Draw]:
        """How the children of `parent` were drawn, in order; several draws may name one child."""
        if self._unwritten:
            for node, guess in enumerate(self._unwritten, 1):
                self._draws.setdefault(self.parents[node], []).append(_new_tuple(Draw, (node, guess)))
            self._unwritten = ()
        return self._draws.get(parent, ())

    def _lacks_some(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and not (min(tokens) >= 0 and max(tokens) < self._vocab_size)

    def _append(self, parents: Sequence[int], tokens: Sequence[int]) -> range:
        first, depths = len(self.tokens), self.depths
        for parent in parents:
            depths.append(depths[parent] + 1)
        self.tokens += tokens
        self.parents += parents
        added = range(first, len(self.tokens))
        self._child_of.update(zip(zip(parents, tokens, strict=True), added, strict=True))
        assert len(self._child_of) == len(self.tokens) - 1, "siblings differ in their token"
        return added

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root's child down to `node`, `node` included; empty for the root."""
        found: list[int] = []
        while node:
            found.append(node)
            node = self.parents[node]
        found.reverse()
        return tuple(found)

    def path_tokens(self, node: int) -> list[int]:
        """Tokens of `path(node)`: what would follow the root."""
        found: list[int] = []
        while node:
            found.append(self.tokens[node])
            node = self.parents[node]
        found.reverse()
        return found

    def above(self, nodes: Iterable[int], known: Container[int]) -> list[int]:
        """These nodes and those on the ways to them, the root included, without the known ones: ascending.

        What is above a known node must be known.
        """
        found: set[int] = set()
        for node in nodes:
            while node >= 0 and node not in known and node not in found:
                found.add(node)
                node = self.parents[node]
        return sorted(found)

    def follow(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The nodes along these tokens from the root, up to the first that is missing."""
        path = [ROOT]
        for token in tokens:
            if (child := self.child(path[-1], token)) is None:
                break
            path.append(child)
        return tuple(path[1:])

    def subtree(self, node: int) -> TokenTree:
        """The frozen tree of what stands below `node`, which is its root; all draws are kept."""
        place = {node: ROOT}
        part = TokenTree(self.tokens[node], self._vocab_size)
        for at in range(node, len(self)):
            if at in place:
                place |= {draw.child: part.add(place[at], draw.guess) for draw in self.draws(at)}
        return part.freeze()

    def with_children(self, node: int, guesses: Iterable[Guess]) -> TokenTree:
        """A frozen copy with these guesses below `node`, behind its own draws; the other nodes keep their numbers."""
        self.draws(node)  # so that all draws are written down
        grown = TokenTree(self.tokens[ROOT], self._vocab_size)
        grown.tokens, grown.parents, grown.depths = [*self.tokens], [*self.parents], [*self.depths]
        grown._child_of = dict(self._child_of)
        grown._draws = {parent: [*draws] for parent, draws in self._draws.items()}
        for guess in guesses:
            grown.add(node, guess)
        return grown.freeze()


class PointRows(Sequence[Sequence[Guess]]):
    """A proposal of points alone, whose guesses are made only where they are asked for.

    Of thousands of guesses in a round some hundred get a place in the tree.

    Attributes:
        tokens: (F, K) different tokens for each node, the likeliest first.
        values: (F, K) their log-probabilities, or logits, never rising along a row; −inf, at the end of a row, where
            there is no token.
        logsumexp: (F,) what is to be taken from logits to make log-probabilities of them; else zeros.
        proposer: the drafter's name.
    """

    __slots__ = ("logsumexp", "proposer", "tokens", "values")

    def __init__(
        self, tokens: list[list[int]], values: list[list[float]], logsumexp: list[float] | None, proposer: str
    ) -> None:
        """`logsumexp` is None for log-probabilities."""
        self.tokens, self.values, self.proposer = tokens, values, proposer
        self.logsumexp = logsumexp or [0.0] * len(tokens)

    def __len__(self) -> int:
        """F: the nodes it is about."""
        return len(self.tokens)

    def rows(self) -> Iterator[tuple[list[int], list[float], float]]:
        """For each node its tokens, their values, and what is to be taken from these."""
        return zip(self.tokens, self.values, self.logsumexp, strict=True)

    @overload
    def __getitem__(self, place: int) -> list[Guess]: ...

    @overload
    def __getitem__(self, place: slice) -> list[list[Guess]]: ...

    def __getitem__(self, place: int | slice) -> list[Guess] | list[list[Guess]]:
        """The guesses below a node, the best first."""
        if isinstance(place, slice):
            return [self[at] for at in range(len(self))[place]]
        each, total = zip(self.tokens[place], self.values[place], strict=True), self.logsumexp[place]
        return [point(token, value - total, self.proposer) for token, value in each if value > -math.inf]


def joined(rows: Sequence[PointRows]) -> PointRows:
    """The rows of one drafter (at least one), one after the other."""
    each = [(tokens, values, total) for some in rows for tokens, values, total in some.rows()]
    tokens, values, logsumexp = map(list, zip(*each, strict=True))
    return PointRows(tokens, values, logsumexp, rows[0].proposer)


def as_points(proposal: Sequence[Sequence[Guess]]) -> Sequence[Sequence[Guess]]:
    """The same guesses without a claim about how their tokens were drawn."""
    if isinstance(proposal, PointRows):
        return proposal
    return [[guess.as_point() for guess in guesses] for guesses in proposal]
