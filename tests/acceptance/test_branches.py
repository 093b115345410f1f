"""Rules that judge whole branches are exact: growth of the tree, draws and coins enumerated, beside wrong controls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from specchat.acceptance.branches import ALL, Standing
from specchat.bench.expected_tokens import followed, judged_by_branch, possible_ends, tried_one_by_one
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree

IID, WOR, POINT = DrawKind.IID, DrawKind.WOR, DrawKind.POINT
V, LENGTH = 3, 4
BRANCHES = {"block": 1, "traversal": ALL}
RULES = pytest.mark.parametrize("rule", BRANCHES)


@cache
def law(name: str, path: tuple[int, ...]) -> Tensor:
    """A fixed random distribution after a path, far from flat; every third one has a hole."""
    generator = torch.Generator().manual_seed(hash((len(name), ord(name[0]), *path)) % 2**31)
    numbers = 1.5 * torch.randn(V, generator=generator, dtype=torch.float64)
    if sum(path) % 3 == 1:
        numbers[len(path) % V] = -torch.inf
    return torch.softmax(numbers, dim=0)


Step = tuple[int, DrawKind, str] | tuple[int, int]
"""The next draw: its parent, kind and proposer. Or the next point: its parent and token."""

Grows = Callable[[TokenTree], Step | None]
"""What comes next, given everything drawn so far; None when the tree is complete."""

Places = Sequence[tuple[int, Guess]]


def built(places: Places) -> TokenTree:
    tree = TokenTree(0, V)
    for parent, guess in places:
        tree.add(parent, guess)
    return tree


def grown(grows: Grows, places: Places = ()) -> Iterator[tuple[float, TokenTree]]:
    """Every tree that can grow, with its probability."""
    tree = built(places)
    step = grows(tree)
    if step is None:
        yield 1.0, tree.freeze()
        return
    if len(step) == 2:
        yield from grown(grows, (*places, (step[0], Guess(step[1], proposer="point"))))
        return
    parent, kind, name = step
    q = law(name, tuple(tree.path_tokens(parent)))
    g = q.clone()
    if kind is WOR:
        g[[d.guess.token for d in tree.draws(parent) if d.guess.proposer == name]] = 0.0
        if float(g.sum()) == 0.0:  # nothing is left to draw: no draw, and whatever would come next does not
            yield 1.0, tree.freeze()
            return
        g /= g.sum()
    for token, chance in enumerate(g.tolist()):
        if chance > 0.0:
            for probability, whole in grown(grows, (*places, (parent, Guess(token, kind, q, proposer=name)))):
                yield chance * probability, whole


def text_law(tree: TokenTree, branches: int, dropped: Sequence[int] = ()) -> Tensor:
    """(V,) × LENGTH: the law of the text after a round over a tree and plain decoding from there on."""
    found = torch.zeros((V,) * LENGTH, dtype=torch.float64)

    def law_after(node: int) -> Tensor | None:
        return None if node in dropped else law("p", tuple(tree.path_tokens(node)))

    def plainly(text: tuple[int, ...], weight: float) -> None:
        if len(text) == LENGTH:
            found[text] += weight
            return
        for token, chance in enumerate(law("p", text).tolist()):
            plainly((*text, token), weight * chance)

    def judge(node: int, weight: float) -> None:
        for probability, (end, after) in possible_ends(tree, node, law_after, branches):
            text = tuple(tree.path_tokens(end))
            if after is None:
                judge(end, weight * probability) if end not in dropped else plainly(text, weight * probability)
                continue
            for token, chance in enumerate(after.tolist()):
                child, reached = tree.child(end, token), weight * probability * chance
                if child is None or child in dropped or reached == 0.0:
                    plainly((*text, token), reached)
                else:
                    judge(child, reached)

    judge(ROOT, 1.0)
    return found


def wanted() -> Tensor:
    found = torch.zeros((V,) * LENGTH, dtype=torch.float64)
    for text in itertools.product(range(V), repeat=LENGTH):
        found[text] = torch.stack([law("p", text[:at])[token] for at, token in enumerate(text)]).prod()
    return found


def error(grows: Grows, branches: int, drops: Callable[[TokenTree], Sequence[int]] = lambda tree: ()) -> float:
    """How far the law of the text is from the target's, over all trees that can grow."""
    total, found = 0.0, torch.zeros((V,) * LENGTH, dtype=torch.float64)
    for probability, tree in grown(grows):
        total += probability
        found += probability * text_law(tree, branches, drops(tree))
    assert total == pytest.approx(1.0, abs=1e-12)
    return float((found - wanted()).abs().max())


def chain(depth: int, kind: DrawKind = IID, name: str = "q") -> Grows:
    return lambda tree: (len(tree) - 1, kind, name) if tree.drafted < depth else None


def while_unlikely(tree: TokenTree) -> Step | None:
    """A chain that ends because of its tokens."""
    node = len(tree) - 1
    return (node, IID, "q") if node < 3 and (node == ROOT or tree.tokens[node] != 1) else None


def draws_at(tree: TokenTree, node: int) -> int:
    return len(tree.draws(node))


def levels(kind: DrawKind, *widths: int, names: str = "q") -> Grows:
    """So many draws below every node of each depth, breadth first."""

    def grows(tree: TokenTree) -> Step | None:
        for node in range(len(tree)):
            if tree.depths[node] < len(widths) and (done := draws_at(tree, node)) < widths[tree.depths[node]]:
                return node, kind, names[done % len(names)]
        return None

    return grows


def entangled(kind: DrawKind) -> Grows:
    """Tokens below one branch decide what another gets, and the other way round; no draw's own token decides."""

    def grows(tree: TokenTree) -> Step | None:
        first = next((d.child for d in tree.draws(ROOT)), None)
        if first is None:
            return ROOT, kind, "q"
        if not tree.draws(first):
            return first, kind, "q"
        below = tree.draws(first)[0].guess.token
        if draws_at(tree, ROOT) < 2 + (below == 0):
            return ROOT, kind, "q"
        second = tree.draws(ROOT)[1].child
        if below != 1 and second != first and not tree.draws(second):
            return second, kind, "q"
        if draws_at(tree, first) < 2 and tree.draws(second) and tree.draws(second)[0].guess.token == 2:
            return first, kind, "q"
        return None

    return grows


def points_first(tree: TokenTree) -> Step | None:
    """Two points, and draws below them."""
    if tree.drafted < 2:
        return ROOT, tree.drafted
    return next(((node, IID, "q") for node in (1, 2, 3, 4) if node < len(tree) and not tree.draws(node)), None)


def points_beside(tree: TokenTree) -> Step | None:
    """A point beside a draw at the root, and a draw below each child."""
    if not tree.draws(ROOT):
        return ROOT, IID, "q"
    if draws_at(tree, ROOT) < 2:
        return ROOT, 1
    return next(
        ((node, IID, "q") for node in range(1, len(tree)) if tree.depths[node] < 3 and not tree.draws(node)), None
    )


GROWTH: dict[str, Grows] = {
    "chain": chain(3),
    "chain wor": chain(3, WOR),
    "chain that ends by its tokens": while_unlikely,
    "two iid": levels(IID, 2, 2),
    "three iid": levels(IID, 3, 1),
    "two wor": levels(WOR, 2, 2),
    "three wor": levels(WOR, 3, 1),
    "two proposers": levels(IID, 2, 1, names="qr"),
    "entangled iid": entangled(IID),
    "entangled wor": entangled(WOR),
    "points first": points_first,
    "points beside": points_beside,
}


@RULES
def test_texts_are_distributed_as_the_targets(rule):
    for name, grows in GROWTH.items():
        assert error(grows, BRANCHES[rule]) < 1e-12, name


@RULES
def test_nodes_that_are_dropped_because_of_their_tokens_leave_the_law_as_it_is(rule):
    def drops(tree: TokenTree) -> list[int]:
        lost = {n for n in range(1, len(tree)) if tree.tokens[n] == 2 and tree.depths[n] == 1}
        return [n for n in range(1, len(tree)) if lost.intersection((n, *tree.path(n)))]

    for grows in (chain(3), levels(IID, 2, 2), levels(WOR, 2, 2)):
        assert error(grows, BRANCHES[rule], drops) < 1e-12


# ---------------------------------------------------------------------------------------- what must not be done


def token_by_token(left: Standing, g: Tensor) -> Standing:
    """The residual of a draw that is judged alone, where a branch was."""
    rest = (left.law - g).clamp(min=0.0)
    return Standing(left.weight, rest / rest.sum()) if float(rest.sum()) > 0.0 else left


def without_its_weight(left: Standing, g: Tensor) -> Standing:
    """The right residual, but the node's own chance is left as it was."""
    return Standing(left.weight, right(left, g).law)


right = Standing.without


@RULES
@pytest.mark.parametrize("mistake", [token_by_token, without_its_weight])
def test_another_residual_is_measurably_wrong(rule, mistake, monkeypatch):
    monkeypatch.setattr(Standing, "without", mistake)
    assert error(chain(2), BRANCHES[rule]) > 1e-3


def mixing(tree: TokenTree) -> Step | None:
    """A point at the root that has a place because of a token below a draw beside it."""
    if not tree.draws(ROOT):
        return ROOT, IID, "q"
    if not tree.draws(1):
        return 1, IID, "q"
    return (ROOT, 0) if draws_at(tree, ROOT) < 2 and tree.draws(1)[0].guess.token == 0 else None


@RULES
def test_points_that_compete_with_tokens_below_draws_are_measurably_wrong(rule):
    """Why `combinations` refuses drafters that mix them."""
    assert error(mixing, BRANCHES[rule]) > 1e-3


@RULES
@pytest.mark.parametrize("lie", ["called wor", "another q"])
def test_draws_that_are_not_what_they_say_are_measurably_wrong(rule, lie):
    found = torch.zeros((V,) * LENGTH, dtype=torch.float64)
    for probability, tree in grown(levels(IID, 2, 1)):
        told = []
        for parent in range(len(tree)):
            for draw in tree.draws(parent):
                q = draw.guess.q if lie == "called wor" else law("other", ())
                told.append((parent, draw.guess._replace(kind=WOR if lie == "called wor" else IID, q=q)))
        found += probability * text_law(built(told).freeze(), BRANCHES[rule])
    assert float((found - wanted()).abs().max()) > 1e-3


# ---------------------------------------------------------------------------------------------- acceptance


def expected(grows: Grows, tokens: Callable[[TokenTree, Callable[[int], Tensor]], float]) -> float:
    def of(tree: TokenTree) -> float:
        return tokens(tree, lambda node: law("p", tuple(tree.path_tokens(node))))

    return sum(probability * of(tree) for probability, tree in grown(grows))


@pytest.mark.parametrize("salt", ["q", "r", "s", "t", "u", "v"])
def test_on_chains_a_block_is_never_shorter_than_draws_judged_one_by_one(salt):
    for depth in (1, 2, 3):
        grows = chain(depth, name=salt)
        alone = expected(grows, tried_one_by_one)
        block = expected(grows, lambda tree, laws: judged_by_branch(tree, laws, 1))
        assert block >= alone - 1e-12
        assert block == pytest.approx(expected(grows, judged_by_branch), abs=1e-12), "traversal is the same there"
        assert alone >= expected(grows, followed) - 1e-12
        if depth == 1:
            assert block == pytest.approx(alone, abs=1e-12)
    assert block > alone + 1e-4, "and longer where a likely token may follow an unlikely one"
