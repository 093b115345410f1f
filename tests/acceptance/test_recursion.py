"""The recursion behind the p/q rules is exact: draws and coins enumerated, beside controls that are wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specchat.acceptance.recursion import trials
from specchat.core.tree import ROOT, Draw, DrawKind, Guess, TokenTree

IID, WOR, POINT = DrawKind.IID, DrawKind.WOR, DrawKind.POINT
EXACT = {"atol": 1e-12, "rtol": 0.0}


def law(vocab_size: int, *key: int) -> Tensor:
    """A fixed random distribution, far from flat."""
    generator = torch.Generator().manual_seed(hash(key) % 2**31)
    return torch.softmax(2.0 * torch.randn(vocab_size, generator=generator, dtype=torch.float64), dim=0)


def f64(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


Drawn = tuple[float, tuple[Guess, ...]]
"""A probability, and what was drawn with it."""


def iid(q: Tensor, count: int, name: str = "a") -> list[Drawn]:
    """Every way to draw `count` tokens independently."""
    return [
        (float(q[list(tokens)].prod()), tuple(Guess(t, IID, q, proposer=name) for t in tokens))
        for tokens in itertools.product(range(len(q)), repeat=count)
    ]


def wor(q: Tensor, count: int, name: str = "a") -> list[Drawn]:
    """Every way to draw `count` tokens without replacement."""
    found = []
    for tokens in itertools.permutations(range(len(q)), count):
        weight, left = 1.0, 1.0
        for token in tokens:
            weight *= float(q[token]) / left
            left -= float(q[token])
        found.append((weight, tuple(Guess(t, WOR, q, proposer=name) for t in tokens)))
    return found


def together(*parts: Sequence[Drawn]) -> list[Drawn]:
    """Draws of several proposers at one node, made independently of each other."""
    combined = []
    for chosen in itertools.product(*parts):
        weight, guesses = 1.0, []
        for w, more in chosen:
            weight *= w
            guesses += more
        combined.append((weight, tuple(guesses)))
    return combined


def outcome(p: Tensor, guesses: Sequence[Guess]) -> tuple[Tensor, float]:
    """The law of the token that follows, coins and last draw enumerated; and how likely a draw is accepted."""
    draws = [Draw(i + 1, guess) for i, guess in enumerate(guesses)]
    emitted, going_on, left = torch.zeros_like(p), 1.0, p
    for trial in trials(p, draws):
        emitted[trial.token] += going_on * trial.chance
        going_on *= 1.0 - trial.chance
        left = trial.left
    return emitted + going_on * left, 1.0 - going_on


def expected(p: Tensor, drawn: Sequence[Drawn]) -> Tensor:
    assert sum(weight for weight, _ in drawn) == pytest.approx(1.0, abs=1e-12)
    return sum(weight * outcome(p, guesses)[0] for weight, guesses in drawn)


def acceptance(p: Tensor, drawn: Sequence[Drawn]) -> float:
    return sum(weight * outcome(p, guesses)[1] for weight, guesses in drawn)


@dataclass(frozen=True)
class Setup:
    name: str
    drawn: Callable[[int, int], list[Drawn]]  # (V, key) → draws at one node


SETUPS = [
    *(Setup(f"{k} iid", lambda v, key, k=k: iid(law(v, key, 1), k)) for k in (1, 2, 3)),
    *(Setup(f"{k} wor", lambda v, key, k=k: wor(law(v, key, 1), k)) for k in (1, 2, 3)),
    Setup("iid of two", lambda v, key: together(iid(law(v, key, 1), 2), iid(law(v, key, 2), 1, "b"))),
    Setup("wor of two", lambda v, key: together(wor(law(v, key, 1), 2), wor(law(v, key, 2), 2, "b"))),
    Setup("iid and wor", lambda v, key: together(iid(law(v, key, 1), 1), wor(law(v, key, 2), 2, "b"))),
    Setup("with points", lambda v, key: together([(1.0, (Guess(0), Guess(1)))], iid(law(v, key, 1), 2))),
]


@pytest.mark.parametrize("vocab_size", [3, 4])
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_the_token_is_distributed_as_the_targets(setup, vocab_size):
    for key in range(5):
        p = law(vocab_size, key, 0)
        torch.testing.assert_close(expected(p, setup.drawn(vocab_size, key)), p, **EXACT)


@pytest.mark.parametrize("vocab_size", [3, 4])
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_two_levels_are_distributed_as_the_targets(setup, vocab_size):
    first = law(vocab_size, 7, 0)
    second = [law(vocab_size, 7, 0, token) for token in range(vocab_size)]
    # A token without a node ends the round; the next round begins behind it.
    behind_a_node = [expected(second[token], setup.drawn(vocab_size, 70 + token)) for token in range(vocab_size)]
    behind_none = [expected(second[token], [(1.0, ())]) for token in range(vocab_size)]
    text = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    for weight, guesses in setup.drawn(vocab_size, 7):
        emitted = outcome(first, guesses)[0]
        children = {guess.token for guess in guesses}
        for token in range(vocab_size):
            below = behind_a_node if token in children else behind_none
            text[token] += weight * emitted[token] * below[token]
    torch.testing.assert_close(text, first[:, None] * torch.stack(second), **EXACT)


def test_laws_with_holes_are_handled():
    p, q = f64([0.0, 0.5, 0.5, 0.0]), f64([0.3, 0.0, 0.7, 0.0])
    drawn = [(w, g) for w, g in iid(q, 2) if w > 0]
    torch.testing.assert_close(expected(p, drawn), p, **EXACT)
    # Two tokens have a probability: a third draw without replacement has nothing left to come from.
    endless = [(float(q[a]), tuple(Guess(t, WOR, q, proposer="a") for t in (a, b, 1))) for a, b in ((0, 2), (2, 0))]
    torch.testing.assert_close(expected(p, endless), p, **EXACT)


# ---------------------------------------------------------------------------------------- what must not be done


def merged(drawn: Sequence[Drawn]) -> Iterator[Drawn]:
    """Two independent draws of one token made into one."""
    for weight, guesses in drawn:
        yield weight, tuple({guess.token: guess for guess in guesses}.values())


def chosen_by_token(drawn: Sequence[Drawn]) -> Iterator[Drawn]:
    """Draws kept only if they look good."""
    for weight, guesses in drawn:
        yield weight, tuple(guess for guess in guesses if guess.token != 2)


def called(kind: DrawKind, drawn: Sequence[Drawn]) -> Iterator[Drawn]:
    for weight, guesses in drawn:
        yield weight, tuple(Guess(g.token, kind, g.q, proposer=g.proposer) for g in guesses)


def with_q(q: Tensor, drawn: Sequence[Drawn]) -> Iterator[Drawn]:
    for weight, guesses in drawn:
        yield weight, tuple(Guess(g.token, g.kind, q, proposer=g.proposer) for g in guesses)


P3, Q3 = f64([0.2, 0.35, 0.45]), f64([0.8, 0.1, 0.1])

CONTROLS = {
    "merging two iid draws into one": list(merged(iid(Q3, 2))),
    "redrawing until distinct and calling it iid": list(called(IID, wor(Q3, 2))),
    "calling iid draws wor": [(w, g) for w, g in called(WOR, iid(Q3, 2))],
    "reporting a q that was not sampled from": list(with_q(f64([0.5, 0.3, 0.2]), iid(Q3, 1))),
    "keeping a draw because of its token": list(chosen_by_token(iid(Q3, 2))),
}


@pytest.mark.parametrize("drawn", CONTROLS.values(), ids=CONTROLS.keys())
def test_draws_that_are_not_what_they_say_are_measurably_wrong(drawn):
    assert float((expected(P3, drawn) - P3).abs().max()) > 1e-3


# ---------------------------------------------------------------------------------------------- acceptance


def follow_acceptance(p: Tensor, drawn: Sequence[Drawn]) -> float:
    """How often the target's own draw is among the draft's: the tries do not know of each other."""
    return sum(w * float(p[sorted({g.token for g in guesses})].sum()) for w, guesses in drawn)


@pytest.mark.parametrize("key", range(6))
def test_more_children_are_accepted_more_often_and_more_than_tries_that_ignore_the_law(key):
    p, q = law(4, key, 0), law(4, key, 1)
    by_count = [acceptance(p, iid(q, k)) for k in (1, 2, 3)]
    assert by_count == sorted(by_count)
    assert by_count[0] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-12)
    for k in (1, 2, 3):
        assert acceptance(p, iid(q, k)) > follow_acceptance(p, iid(q, k))
        assert acceptance(p, wor(q, k)) >= acceptance(p, iid(q, k)) - 1e-12


@pytest.mark.parametrize("key", range(6))
def test_both_tokens_of_two_drawn_without_replacement_are_always_enough(key):
    p, q = law(2, key, 0), law(2, key, 1)
    assert acceptance(p, wor(q, 2)) == pytest.approx(1.0, abs=1e-12)
    assert acceptance(p, iid(q, 2)) < 0.999


def test_draws_from_the_targets_own_law_are_always_accepted():
    p = law(4, 3, 0)
    for drawn in (iid(p, 1), iid(p, 3), wor(p, 2)):
        assert acceptance(p, drawn) == pytest.approx(1.0, abs=1e-12)


def test_at_temperature_0_a_draw_is_accepted_exactly_where_it_is_the_targets_token():
    p = f64([0.0, 1.0, 0.0])
    for _, guesses in iid(Q3, 2):
        emitted, accepted = outcome(p, guesses)
        torch.testing.assert_close(emitted, p, **EXACT)
        assert accepted == float(any(guess.token == 1 for guess in guesses))


def test_points_are_never_tried():
    tree = TokenTree(0, 3)
    tree.add(ROOT, Guess(1))
    tree.add(ROOT, Guess(2))
    assert list(trials(P3, tree.draws(ROOT))) == []
