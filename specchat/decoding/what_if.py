"""A reply once more under other settings, along the text that it has: what its rounds would have been."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from specchat.core.budget import Budget
from specchat.core.constraint import Constraint
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.reading import Reading
from specchat.core.record import record
from specchat.core.request import FIRST, HeadNeeds
from specchat.core.round import Round, Verdict
from specchat.core.sampling import Sampling
from specchat.core.seams import AcceptanceRule, Controller
from specchat.core.tree import ROOT, TokenTree
from specchat.decoding.assemble import sampling
from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import PromptRead, RoundWritten
from specchat.settings import Settings


def text_decides(own: Settings, other: Settings) -> bool:
    """Whether the tokens of a reply decide every guess that other settings would have made.

    Under `follow` they are the target's own draws, which depend on no tree. Under other rules, and where the target
    samples in another way, the target has to be asked.
    """
    return own.rule == other.rule == "follow" and sampling(own) == sampling(other)


_BY_TIME = ("goodput", "cost_model")
"""Controllers that guess less where that takes too long."""


def in_full(own: Settings, other: Settings) -> tuple[Settings, Settings] | None:
    """The same with every round guessing all it may; None where they differ in their controllers, or do so anyway.

    Controllers that go by time decide otherwise in the next run, so what they guess says little about a tree's shape.
    """
    names = own.controller.split("+")
    if own.controller != other.controller or not set(names) & set(_BY_TIME):
        return None
    controller = "+".join(dict.fromkeys("fixed" if name in _BY_TIME else name for name in names))
    return replace(own, controller=controller), replace(other, controller=controller)


class AlongText(AcceptanceRule):
    """Accepts what the text has, whatever another rule says, so that each round goes on along the text.

    Args:
        text: the tokens of the whole reply, which begins at `first` of the history.
        decides: the rule need not be asked.
        boundary: the place in the text at which a round shall begin.

    Attributes:
        said: what the rule said of the last round's tree.
    """

    def __init__(
        self, rule: AcceptanceRule, text: Sequence[int], first: int, *, decides: bool, boundary: int | None
    ) -> None:
        self._rule, self._text, self._first, self._decides, self._boundary = rule, text, first, decides, boundary
        self.lossless, self.wanted, self.wants_q = rule.lossless, rule.wanted, rule.wants_q
        self.wants_sources, self.judges_branches = rule.wants_sources, rule.judges_branches
        self.said: Verdict | None = None

    @property
    def taps(self) -> Collection[int]:
        return self._rule.taps

    def needs(self, sampling: Sampling) -> HeadNeeds:
        return FIRST if self._decides else self._rule.needs(sampling)

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        self.said = None if self._decides else self._rule.judge(tree, reading, context)
        place, path, node = len(context.history) - self._first, list[int](), ROOT
        while place < len(self._text):
            token = self._text[place]
            child = tree.child(node, token)
            place += 1
            if child is None or child not in reading.alive or place == self._boundary:
                return Verdict(tuple(path), token, tree, reading.pruned)
            path.append(child)
            node = child
        return Verdict(tuple(path), self._text[-1], tree, reading.pruned)  # the reply is cut before this bonus


class Replanned(Controller):
    """Plans as a controller does that no other program disturbs: two runs differ by their settings alone.

    It is told what passes cost here by their rows, where that was measured, and not what they took.

    Args:
        plain: the numbers of rounds that are plain, as those of the reply were by which its speed was measured.
        never_plain: the place at which a round is looked at, which is not plain for that reason.
    """

    def __init__(
        self, controller: Controller, costs: Costs | None, plain: Collection[int], never_plain: int | None
    ) -> None:
        self._controller, self._costs, self._plain, self._never_plain = controller, costs, plain, never_plain

    def plan(self, context: Context) -> Budget:
        if context.round in self._plain and len(context.history) != self._never_plain:
            return Budget(nodes=0, depth=0, width=0, why="to compare with")
        return self._controller.plan(context)

    def observe(self, round: Round) -> None:
        if self._costs is not None:
            round.timings.verify_s = self._costs.verify_s(round.rows)
        self._controller.observe(round)


@record
class RedoneRound:
    """A round that began at this place of the text, as its rule says; `last`: the text ends with it."""

    round: Round
    place: int
    last: bool


def redo(
    conversation: Conversation,
    prompt: Sequence[int],
    text: Sequence[int],
    seed: int,
    *,
    decides: bool,
    costs: Costs | None,
    plain: Collection[int],
    constraint: Constraint | None,
    boundary: int | None,
    guesses_there: bool,
    cancelled: Callable[[], bool],
    on_prefill: Callable[[PromptRead], None],
) -> Iterator[RedoneRound]:
    """The rounds of a conversation that writes this text. It must be one that stands apart, and has written nothing.

    Args:
        costs: what passes cost on this machine, as far as it was measured.
        boundary: see `AlongText`; `guesses_there`: the round that begins there is none of those.
    """
    conversation.change(conversation.settings.but({"max_tokens": len(text)}))
    conversation.build_parts()
    speculator = conversation.speculator
    rule = AlongText(speculator.rule, text, len(prompt), decides=decides, boundary=boundary)
    speculator.rule, controller = rule, speculator.controller
    there = len(prompt) + boundary if boundary is not None and guesses_there else None
    speculator.controller = Replanned(controller, costs, frozenset(plain), there)

    done = 0
    for event in conversation.reply(prompt, seed, cancelled, on_prefill, constraint=constraint):
        if isinstance(event, RoundWritten):
            round, left = event.round, len(text) - done
            if rule.said is not None:
                told = rule.said.cut(left)
                round = replace(round, verdict=told, emitted=told.emitted)
            yield RedoneRound(round, done, event.last)
            done += len(event.round.emitted)


@dataclass
class RoundTotals:
    """Sums over the rounds of a reply that was done once more.

    Attributes:
        whole: whether it was done to its end.
        plain_places: where rounds without guesses began.
    """

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    whole: bool = False
    plain_places: set[int] = field(default_factory=set)
    _passes: list[tuple[int, float]] = field(default_factory=list)  # rows and seconds
    _drafting_s: list[float] = field(default_factory=list)  # of rounds with guesses

    def add(self, redone: RedoneRound) -> None:
        round = redone.round
        self.rounds += 1
        self.tokens += len(round.emitted)
        self.drafted += round.tree.drafted
        self.whole = redone.last
        self._passes.append((round.rows, round.timings.verify_s))
        if round.budget.nodes:
            self._drafting_s.append(round.timings.draft_s + round.timings.learn_s)
        else:
            self.plain_places.add(redone.place)

    def round_s(self, costs: Costs | None, beside: RoundTotals) -> float:
        """Seconds of a mean round: passes by what they cost on this machine, where that was measured, and drafting.

        Where it was not, passes of as many rows take what they took in the median, here and in the rounds `beside`, so
        that equal rounds cost the same. Drafting is taken at its median here: parts that were just built are slow at
        first, which says nothing of the next reply.
        """
        if not self.rounds:
            return 0.0
        took: dict[int, list[float]] = {}
        for rows, seconds in (*self._passes, *beside._passes):
            took.setdefault(rows, []).append(seconds)
        passes_s = sum(
            statistics.median(took[rows]) if costs is None else costs.verify_s(rows) for rows, _ in self._passes
        )
        drafting_s = len(self._drafting_s) * statistics.median(self._drafting_s) if self._drafting_s else 0.0
        return (passes_s + drafting_s) / self.rounds
