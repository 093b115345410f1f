"""Trees grown in C from what suffix trees and networks of any kind say, with any budget and any sampling."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import Asked, CompiledNetwork, CompiledTable, GrowthPlan
from specchat.core.context import Context
from specchat.core.noise import Noise
from specchat.core.sampling import Sampling
from specchat.indexes.called_network import Named, named_of
from specchat.indexes.guess_search import MOST_MEMBERS, MOST_WIDTH, Found, GuessSearch
from specchat.indexes.native_suffix_tree import NativeDrafter, NativeSuffixTree
from specchat.indexes.suffix_draft import DraftLimits
from specchat.indexes.token_translation import UNKNOWN, TranslatedNetwork
from specchat.trees.given_shapes import StaticShape

_INT, _INTS, _FLOATS = ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_float)
_READ_ROWS = ctypes.PYFUNCTYPE(_INT, ctypes.c_void_p, _INT, _INTS, _INTS, _INT, _INTS, _FLOATS, _FLOATS)
_DONE, _MISSING_INPUT, _NO_ROOM = 0, 3, 4
_ODD = (0.0, -0.0, 1.0, -1e-38, -1e38, float("-inf"))


class _Network:
    """Says anything at all, and now and then that it cannot; never one token twice after a row."""

    def __init__(self, random: Random, vocab_size: int) -> None:
        self._random, self._vocab_size = random, vocab_size
        self._fails, self._odd = random.choice([0.0, 0.0, 0.03]), random.choice([0.0, 0.0, 0.1])
        self._callback = _READ_ROWS(self._answer)
        self.rows = 0  # read of this tree
        self.wrong: list[Exception] = []  # what it was asked
        address = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        self.asked = CompiledNetwork(address, logits=random.random() < 0.5)

    def _answer(self, *given: Any) -> int:
        try:
            return self._read(*given)
        except Exception as error:  # which C would not hand on
            self.wrong.append(error)
            return _NO_ROOM

    def _read(self, *given: Any) -> int:
        _, count, behind, tokens, width, said, logprobs, logsumexp = given
        random = self._random
        assert count > 0, "some rows"
        assert 0 < width <= MOST_WIDTH, f"{width} wide"
        assert all(-1 <= behind[row] < self.rows for row in range(count)), "rows stand behind earlier ones"
        assert (behind[0] == -1) == (self.rows == 0), "the root is read first, and once"
        if random.random() < self._fails:
            said[0] = tokens[random.randrange(count)]
            return random.choice([_MISSING_INPUT, _NO_ROOM])
        for row in range(count):
            logsumexp[row] = random.uniform(-30.0, 30.0)
            named = random.sample(range(self._vocab_size), min(width, self._vocab_size, random.choice([0, 3, 64])))
            for place, logprob in enumerate(sorted((-random.expovariate(0.5) for _ in named), reverse=True)):
                odd = random.random() < self._odd
                said[row * MOST_WIDTH + place] = named[place]
                logprobs[row * MOST_WIDTH + place] = random.choice(_ODD) if odd else logprob
            if len(named) < width:
                said[row * MOST_WIDTH + len(named)] = -1
        self.rows += count
        return _DONE


class _Lookup:
    """Suffix trees over texts that repeat themselves, some forgotten again."""

    def __init__(self, random: Random, vocab_size: int) -> None:
        depth = random.choice([1, 2, 8, 24])
        self._random, self._vocab_size = random, vocab_size
        self.trees = [NativeSuffixTree(depth) for _ in range(random.choice([1, 2]))]
        room = tuple(random.randint(0, depth) for _ in range(depth + 1))
        self._drafter = NativeDrafter(self.trees, DraftLimits(room, random.choice([0.0, 0.1, 0.9])))
        self.asked = self._drafter.lookup

    def change(self) -> None:
        """One text goes on, ends or is forgotten."""
        random, tree = self._random, self._random.choice(self.trees)
        match random.randrange(8):
            case 0:
                tree.end_text()
            case 1 if tree.finished:
                tree.end_text()
                tree.forget_oldest()
            case 2:
                tree.clear()
            case _:
                letters = random.choice([2, self._vocab_size])
                tree.extend([random.randrange(min(letters, self._vocab_size)) for _ in range(random.choice([1, 40]))])


class _Table:
    """Successors of some tokens, and perhaps not of all that are guessed."""

    def __init__(self, random: Random, vocab_size: int) -> None:
        count, tokens = min(vocab_size, random.choice([1, 8, 100])), random.choice([1, min(50, vocab_size)])
        self._table = array("i")
        for _ in range(tokens):
            known = random.choice([0, count, random.randrange(count)])
            self._table.extend([*random.sample(range(vocab_size), known), *[-1] * (count - known)])
        self._by_rank = array("d", sorted((-random.expovariate(0.5) for _ in range(count)), reverse=True))
        self.asked = CompiledTable(self._table.buffer_info()[0], tokens, count, self._by_rank.buffer_info()[0])


class _Fails(Exception):
    """What Python, called back, raises."""


class _Translated:
    """A draft model that says anything in tokens of its own, and such a translation; both fail at times."""

    def __init__(self, random: Random, vocab_size: int) -> None:
        self._random, self._vocab_size = random, vocab_size
        self._draft_tokens, self._rows = random.choice([1, 3, 40, 3000]), 0
        self._fails, self._odd = random.choice([0.0, 0.0, 0.02]), random.choice([0.0, 0.0, 0.1])
        self.ngrams: list[tuple[tuple[int, ...], int]] = []
        self._network = TranslatedNetwork(self._read, self, self._draft_tokens, vocab_size)

    @property
    def asked(self) -> CompiledNetwork:
        """Of a tree that begins, after some more n-grams were learnt."""
        self._rows = 0
        for _ in range(self._random.choice([0, 1, 30])):
            self.ngrams.append((self._draft_run(self._random.randint(0, 6)), self._random.choice([-1, self._own()])))
        return self._network.begin(self._random.randrange(self._draft_tokens), self._random.choice([0, 3, 1000]))

    def known_first(self, count: int) -> Any:
        """Of many tokens nothing is known."""
        return np.array(
            [self._random.choice([UNKNOWN, UNKNOWN, -1, self._own()]) for _ in range(count)], dtype=np.int32
        )

    def own_tokens(self, token: int) -> tuple[int, ...]:
        """Of the target, or numbers that are none."""
        assert 0 <= token < self._draft_tokens, f"draft token {token}"
        self._may_fail()
        return tuple(self._own() for _ in range(self._random.choice([0, 1, 2, 30])))

    def draft_tokens(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        """What a path that another member guessed is."""
        assert all(0 <= token < self._vocab_size for token in tokens), "tokens of the target"
        self._may_fail()
        return self._random.choice([None, self._draft_run(self._random.choice([0, 1, 50]))])

    def _read(self, behind: Sequence[int], tokens: Sequence[int], width: int) -> Named:
        random, count = self._random, min(width, self._draft_tokens)
        assert (behind[0] == -1) == (self._rows == 0), "the root is read first, and once"
        assert all(-1 <= row < self._rows + place for place, row in enumerate(behind)), "rows stand behind earlier ones"
        assert all(0 <= token < self._draft_tokens for token in tokens), "tokens of the draft model"
        self._may_fail()
        self._rows += len(tokens)
        named = np.array([random.sample(range(self._draft_tokens), count) for _ in tokens])
        values = -np.sort([[random.expovariate(0.5) for _ in range(count)] for _ in tokens], axis=1)
        for row, column in zip(*np.nonzero(np.ones_like(named)), strict=True):
            if random.random() < self._odd:
                named[row, column] = random.choice([-1, -7, self._draft_tokens, 2**31 - 1, 0])
                values[row, column] = random.choice([*_ODD, float("nan")])
        return named_of(named, values, np.array([random.uniform(-30.0, 30.0) for _ in tokens]))

    def _may_fail(self) -> None:
        if self._random.random() < self._fails:
            raise _Fails

    def _own(self) -> int:
        outside = self._random.random() < self._odd
        return (
            self._random.choice([-9, self._vocab_size, 2**31 - 1])
            if outside
            else self._random.randrange(self._vocab_size)
        )

    def _draft_run(self, length: int) -> tuple[int, ...]:
        """Mostly of few tokens, so that some are met again."""
        few = min(self._draft_tokens, self._random.choice([3, self._draft_tokens]))
        return tuple(self._random.randrange(few) for _ in range(length))


def run_guesses(seed: int) -> None:
    """Grow some trees; each keeps to its budget, and whatever came of it is learnt."""
    random = Random(seed)
    vocab_size = random.choice([2, 3, 50, 5000])
    kinds = [random.choice([_Network, _Lookup, _Table, _Translated]) for _ in range(random.randint(1, MOST_MEMBERS))]
    made = [kind(random, vocab_size) for kind in kinds]
    apart = (random.random() < 0.5, random.choice([0, 1, 8, 100])) if len(made) > 1 else (False, 0)
    search = GuessSearch(len(made), random.choice([0.0, 0.5, 1.1]), len(made) > 1 or random.random() < 0.5, *apart)
    text = [random.randrange(vocab_size) for _ in range(random.choice([1, 30]))]
    context = Context(text, len(text), vocab_size, _sampling(random), Noise(seed))
    for _ in range(12):
        budget = _budget(random)
        for member in made:
            if isinstance(member, _Lookup):
                member.change()
            elif isinstance(member, _Network):
                member.rows = 0
        asked: list[Asked] = [
            CompiledNetwork() if isinstance(member, _Network) and random.random() < 0.1 else member.asked
            for member in made
        ]
        try:
            found = search.grow(context, _plan(budget, random), asked)
        except _Fails:
            found = None
        for member in made:
            if isinstance(member, _Network) and member.wrong:
                raise member.wrong[0]
        emitted = _check(found, budget, context, random) if isinstance(found, tuple) else []
        search.learn([*emitted, random.randrange(vocab_size)])
        context.emit([*emitted, random.randrange(vocab_size)])


def _check(found: Found, budget: Budget, context: Context, random: Random) -> list[int]:
    """The tokens along some path."""
    nodes = list(zip(*found, strict=True))
    depths, paths, last = [0], [()], len(nodes)
    assert last <= budget.nodes, f"{last} nodes of {budget.nodes}"
    assert len({(parent, token) for parent, token, _, _ in nodes}) == last, "siblings differ"
    for node, (parent, token, cell, logprob) in enumerate(nodes, 1):
        assert 0 <= parent < node, f"node {node} follows {parent}"
        assert 0 <= token < context.vocab_size, f"token {token}"
        assert cell >= 0, f"cell {cell}"
        assert not math.isnan(logprob), "a number"
        depths.append(depths[parent] + 1)
        paths.append((*paths[parent], token))
    assert max(depths) <= budget.depth, f"{max(depths)} deep, not {budget.depth}"
    return list(random.choice(paths))


def _plan(budget: Budget, random: Random) -> GrowthPlan:
    """As one of the policies asks for a tree."""
    few, floor = random.choice([0, 0, 1, 5]), random.choice([0.0, 0.0, 0.01])
    match random.randrange(6):
        case 0:
            return GrowthPlan(budget, few, floor)
        case 1:
            return GrowthPlan(budget, few, floor, decay=random.choice([0.5, 1.0]), calls=random.choice([0, 1, 8]))
        case 2:
            return GrowthPlan(budget, few, floor, levels=True, fallback=random.choice([0.0, 0.3]))
        case 3:
            return GrowthPlan(budget, floor=floor, levels=True, beams=random.choice([1, 4, 300]))
        case 4:
            return GrowthPlan(budget, levels=True, repeat=random.choice([1, 2, 17]))
    paths: list[tuple[int, ...]] = [()]
    for _ in range(random.choice([0, 3, 40])):
        paths.append((*random.choice(paths), random.randrange(budget.width)))
    shape = StaticShape(dict.fromkeys(paths, random.randint(1, budget.width)))
    return GrowthPlan(budget, levels=True, shape=shape.as_numbers)


def _budget(random: Random) -> Budget:
    nodes, prices = random.choice([1, 2, 16, 64, 200]), sorted(random.random() / 5 for _ in range(random.randrange(5)))
    return Budget(
        nodes,
        depth=random.choice([1, 2, 8, 40]),
        width=random.choice([1, 2, 8, MOST_WIDTH]),
        prices=tuple(random.choice([[], prices])),
        passes=random.random() < 0.9,
        pass_price=random.choice([0.0, 0.0, 0.2]),
    )


def _sampling(random: Random) -> Sampling:
    return Sampling(
        temperature=random.choice([0.0, 0.0, 1e-4, 0.7, 2.0]),
        top_k=random.choice([0, 1, 20, 10_000]),
        top_p=random.choice([1.0, 0.9, 1e-12]),
        min_p=random.choice([0.0, 0.05, 1.0]),
        repetition_penalty=random.choice([1.0, 1.1, 0.5]),
        presence_penalty=random.choice([0.0, 0.0, 1.5, -2.0]),
        frequency_penalty=random.choice([0.0, 0.0, 0.3, -2.0]),
    )
