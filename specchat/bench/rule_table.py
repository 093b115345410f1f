"""Tokens a round under every rule that is lossless, over trees of one shape at the same places of some replies.

At places of replies that the target writes, trees are grown of the drafter's points, of points coupled with the
target's noise, of independent draws and of draws without replacement. The target reads each, and from its laws and the
drafter's the mean over all coins is computed (`expected_tokens`); no seconds are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial

import torch
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from specchat.acceptance.branches import ALL, Ended, LawAfter, path_end
from specchat.acceptance.recursion import trials
from specchat.bench.circumstances import Circumstances, circumstances
from specchat.bench.measured_reply import Interval, ratio_of_totals
from specchat.bench.report_tables import range_text, table_of
from specchat.bench.workloads import Question
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.noise import Noise
from specchat.core.reading import Reading
from specchat.core.request import LOGITS, PassRequest
from specchat.core.sampling import Sampling
from specchat.core.seams import Drafter, Proposal, TreePolicy
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree, point
from specchat.decoding.assemble import assemble, sampling
from specchat.decoding.speculate import Speculator
from specchat.drafters.choice import DrafterChoice, choose_drafter
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.errors import UsageError
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

Laws = Callable[[int], Tensor]
"""Node → (V,) float64, the target's law after it."""

Ends = Callable[[TokenTree, int, LawAfter], Iterator[tuple[float, Ended]]]
"""(tree, accepted node, laws) → each end of the path below the node that a rule may find, with its probability."""


def followed(tree: TokenTree, laws: Laws, node: int = ROOT) -> float:
    """Under `follow`, whose walk goes to a child with the target's probability of its token."""
    children, found = tree.children(node), 1.0
    p = laws(node)[[tree.tokens[child] for child in children]].tolist() if children else ()
    for chance, child in zip(p, children, strict=True):
        found += chance * followed(tree, laws, child)
    return found


def judged(tree: TokenTree, laws: Laws, ends: Ends, node: int = ROOT) -> float:
    """Under a rule that finds these ends, for a tree of sampled draws alone."""
    found = 0.0
    for probability, (end, law) in ends(tree, node, laws):
        below = tree.depths[end] - tree.depths[node]
        found += probability * (below + (1.0 if law is not None else judged(tree, laws, ends, end)))
    return found


def ends_one_by_one(tree: TokenTree, node: int, law_after: LawAfter) -> Iterator[tuple[float, Ended]]:
    """Under `multi_step` and `recursive`: the first draw that is accepted, where judging begins anew, or the node."""
    left, draws, reached = law_after(node), tree.draws(node), 1.0
    for trial in trials(left, draws) if left is not None else ():
        if trial.chance > 0.0:
            yield reached * trial.chance, Ended(draws[trial.index].child, None)
        reached, left = reached * (1.0 - trial.chance), trial.left
    if reached > 0.0:
        yield reached, Ended(node, left)


def ends_of_branches(
    tree: TokenTree, node: int, law_after: LawAfter, branches: int = ALL
) -> Iterator[tuple[float, Ended]]:
    """Under `traversal`, and with one branch under `block`: all outcomes of the coins, enumerated."""
    unseen: list[tuple[bool, ...]] = [()]
    while unseen:
        coins = _Coins(unseen.pop(), unseen)
        ended = path_end(tree, node, law_after, coins, branches)
        yield coins.probability, ended


ENDS: dict[str, Ends] = {
    "multi_step": ends_one_by_one,
    "recursive": ends_one_by_one,
    "block": partial(ends_of_branches, branches=1),
    "traversal": ends_of_branches,
}
"""By the rule's name."""


class _Coins:
    """Coins that fall as they are told, then yes where they can; every other outcome is noted as unseen."""

    def __init__(self, told: tuple[bool, ...], unseen: list[tuple[bool, ...]]) -> None:
        self.probability = 1.0
        self._told, self._unseen = told, unseen
        self._fallen: list[bool] = []

    def __call__(self, parent: int, index: int, chance: float) -> bool:
        fallen, told = self._fallen, self._told
        yes = told[len(fallen)] if len(fallen) < len(told) else chance > 0.0
        if len(fallen) >= len(told) and 0.0 < chance < 1.0:
            self._unseen.append((*fallen, False))
        self.probability *= chance if yes else 1.0 - chance
        fallen.append(yes)
        return yes


LIKELIEST, COUPLED = "follow, likeliest", "follow, coupled"
_RULES = {DrawKind.IID: ("multi_step", "block"), DrawKind.WOR: ("recursive", "traversal")}
ROWS = (LIKELIEST, COUPLED, *(rule for rules in _RULES.values() for rule in rules))
"""What is compared: `follow` with two kinds of points, and the rules that use q with the draws they want."""

_EVERY = 4
"""One round of so many is looked at: neighbouring places say nearly the same."""

_NOISES = 4
"""So many times the coupled guesses of one place are made and followed."""


@dataclass(frozen=True)
class Shape:
    """Trees that are compared with each other."""

    name: str
    policy: str
    budget: Budget


@dataclass(frozen=True)
class RuleRow:
    """Tokens a round of one rule over the trees of one shape, their ratio to those of coupled points, and nodes a tree.

    Ranges are over replies.
    """

    rule: str
    shape: str
    tokens: Interval
    ratio: Interval
    nodes: float


@dataclass(frozen=True)
class SamplingTable:
    """The figures found where the target samples like this."""

    name: str
    sampling: Sampling
    replies: int
    places: int
    rows: tuple[RuleRow, ...]


@dataclass(frozen=True)
class RuleReport:
    pair: str
    drafter: str
    circumstances: Circumstances
    tables: tuple[SamplingTable, ...]


def drawing(settings: Settings) -> DrafterChoice:
    """The drafter of the settings, or the first of its members, that draws from laws of its own.

    Raises:
        UsageError: none does.
    """
    wanted = choose_drafter(settings)
    for choice in (wanted, *wanted.leaves()):
        if choice.name != "none" and not choice.mixes(DrawKind.IID) and _RULES.keys() <= set(choice.draw_kinds):
            return choice
    raise UsageError(
        f"bench --rules compares what rules make of a drafter's laws, and drafter {settings.drafter!r} has none; "
        "nearest that works: --drafter draft_model, or --drafter hydra where the pair has such a network"
    )


@dataclass
class RuleBench:
    """Measures one table after the other over a loaded pair.

    Args:
        settings: how to draft, and how long replies are.
        samplings: name → how the target samples.
    """

    pair: LoadedPair
    settings: Settings
    samplings: dict[str, Settings]
    on_reply: Callable[[str, str], None] = lambda who, what: None

    @cached_property
    def _shapes(self) -> tuple[Shape, ...]:
        """A chain, chains side by side, and the trees of the settings' own width, depth and nodes."""
        own = self.settings
        depth, width = min(4, own.depth), min(3, own.width)
        return (
            Shape(f"chain of {depth}", "chain", Budget(depth, depth, 1)),
            Shape(f"{width} chains of {depth}", "expansion", Budget(width * depth, depth, width)),
            Shape(f"best_first, {own.nodes}", "best_first", Budget(own.nodes, own.depth, own.width)),
        )

    def run(self, questions: Sequence[Question]) -> RuleReport:
        """Every table; a question's first turn is asked."""
        tables = tuple(self._table(name, own, questions) for name, own in self.samplings.items())
        return RuleReport(self.pair.name, self.settings.drafter, circumstances(), tables)

    def _table(self, name: str, settings: Settings, questions: Sequence[Question]) -> SamplingTable:
        found: list[Places] = []
        for question in questions:
            self.on_reply(name, question.question_id)
            prompt = self.pair.vocabulary.encode_chat([{"role": "user", "content": question.turns[0]}])
            if len(prompt) + settings.max_tokens < self.pair.target.model.context_tokens:
                found.append(self._reply(settings, prompt))
        found = [one for one in found if one.places]
        places = [float(one.places) for one in found]

        def row(rule: str, shape: str) -> RuleRow:
            tokens, coupled = ([one.tokens[name, shape] for one in found] for name in (rule, COUPLED))
            nodes = sum(one.nodes[rule, shape] for one in found) / max(1.0, sum(places))
            return RuleRow(rule, shape, ratio_of_totals(tokens, places), ratio_of_totals(tokens, coupled), nodes)

        rows = [row(rule, shape.name) for shape in self._shapes for rule in ROWS]
        return SamplingTable(name, sampling(settings), len(found), sum(one.places for one in found), tuple(rows))

    def _reply(self, settings: Settings, prompt: list[int]) -> Places:
        """Totals over the places of one reply, which is written under `follow`."""
        pair, found = self.pair, Places()
        draft = pair.draft.model if pair.draft else None
        plain = {"drafter": self.settings.drafter, "rule": "follow", "controller": "fixed", "policy": "chain"}
        speculator = assemble(settings.but(plain), pair.target.model, draft, resources=pair.resources)
        vocab_size = pair.target.model.vocab_size
        context = Context(prompt, len(prompt), vocab_size, sampling(settings), Noise(max(0, settings.seed)))
        for loaded in (pair.target, *pair.drafts):
            loaded.model.prefill(())
        speculator.start(context.history)
        with torch.inference_mode():
            while len(context.history) - context.prompt_tokens < settings.max_tokens:
                if context.round % _EVERY == 1:  # not the first: states of the prompt's end come with it
                    found.places += 1
                    for shape in self._shapes:
                        self._look(speculator, context, shape, found)
                emitted = speculator.round(context).emitted
                if not pair.vocabulary.eos_ids.isdisjoint(emitted):
                    break
        speculator.drafter.close()
        return found

    def _look(self, speculator: Speculator, context: Context, shape: Shape, found: Places) -> None:
        method = TREE_POLICIES[shape.policy]
        policy: TreePolicy = method.load()(method.options())
        context.budget = shape.budget

        def grown(kind: DrawKind, drafter: Drafter = speculator.drafter) -> TokenTree:
            context.wanted = kind
            return policy.grow(drafter, context, shape.budget)

        def add(rule: str, tree: TokenTree, tokens: float) -> None:
            found.add(rule, shape.name, tokens, tree.drafted)

        with self._read(grown(DrawKind.IID, LikeliestByLaw(speculator.drafter)), context) as (tree, reading):
            add(LIKELIEST, tree, followed(tree, _laws(tree, reading, context)))
        own = context.noise
        for label in range(_NOISES):  # its mean has no formula: several of the target's noises
            context.noise = own.child(f"rules {label}")
            with self._read(grown(DrawKind.POINT), context) as (tree, reading):
                emitted = len(speculator.rule.judge(tree, reading, context).emitted)
            found.add(COUPLED, shape.name, emitted / _NOISES, tree.drafted / _NOISES)
        context.noise = own
        for kind, rules in _RULES.items():
            with self._read(grown(kind), context) as (tree, reading):
                laws = _laws(tree, reading, context)
                for rule in rules:
                    add(rule, tree, judged(tree, laws, ENDS[rule]))

    @contextmanager
    def _read(self, tree: TokenTree, context: Context) -> Iterator[tuple[TokenTree, Reading]]:
        """A tree that the target has read, and forgets afterwards."""
        target = self.pair.target.model
        yield tree, target.read(tree, request=PassRequest(needs=LOGITS))
        target.prefill(context.history[:-1])


def _laws(tree: TokenTree, reading: Reading, context: Context) -> Laws:
    @cache
    def law_after(node: int) -> Tensor:
        return context.law_after(tree, node, reading.after(node)).dense(context.vocab_size)

    return law_after


@dataclass
class Places:
    """Totals over the places of one reply, by rule and shape."""

    places: int = 0
    tokens: dict[tuple[str, str], float] = field(default_factory=dict)
    nodes: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, rule: str, shape: str, tokens: float, nodes: float) -> None:
        self.tokens[rule, shape] = self.tokens.get((rule, shape), 0.0) + tokens
        self.nodes[rule, shape] = self.nodes.get((rule, shape), 0.0) + nodes


class LikeliestByLaw(Drafter):
    """The likeliest tokens of the law that a drafter would draw from, as points."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    @property
    def passes(self) -> int:
        return self._drafter.passes

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        said = self._drafter.propose(tree, frontier, 1, context)
        return [list(_likeliest(guesses[0].q, width)) if guesses else [] for guesses in said]


def _likeliest(q: Tensor | None, width: int) -> Iterator[Guess]:
    assert q is not None, "a draw carries its law"
    best = q.topk(min(width, len(q)))
    for token, chance in zip(best.indices.tolist(), best.values.log().tolist(), strict=True):
        if chance > float("-inf"):
            yield point(token, chance, "likeliest")


def rule_tables(report: RuleReport) -> RenderableType:
    """The tables for a terminal: a row for each rule, a column for each shape of tree."""
    parts: list[RenderableType] = []
    for found in report.tables:
        places = f"{found.places} places of {found.replies} replies"
        parts.append(Text(f"{report.pair} · {report.drafter} · {found.name} · {places}", "bold"))
        names = list(dict.fromkeys(row.shape for row in found.rows))
        for title, figure in (("tokens a round  (95 %)", "tokens"), ("× coupled  (95 %)", "ratio")):
            table = table_of(title, *names)
            for rule in ROWS:
                table.add_row(rule, *(_cell(getattr(row, figure)) for row in found.rows if row.rule == rule))
            parts += [table, Text()]
    about = report.circumstances
    made = f"{about.made} · commit {about.commit} · {about.command}"
    return Group(*parts, Text(made, "dim"))


def _cell(found: Interval) -> str:
    return f"{found.value:.3f}  {range_text(found)}".rstrip()
