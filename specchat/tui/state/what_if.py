"""What a reply's rounds would have been under other settings: the question to the engine, and its answer in words."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from specchat.engine.protocol.commands import WhatIf
from specchat.engine.protocol.events import RedoneRounds, RoundDone, WouldBe
from specchat.engine.protocol.round_parts import Reason
from specchat.errors import UsageError
from specchat.settings import GREEDY, SPECULATION
from specchat.tui.state.chat import Chat
from specchat.tui.state.engine_state import changes_of
from specchat.tui.state.setting_effect import differences
from specchat.tui.state.turn import Reply, Turn
from specchat.tui.text import numbers

WHOLE_TOKENS = 512
"""Tokens of a reply that are done once more; of a longer one those before the round that is looked at besides."""

QUICK_TOKENS = 128
"""The same where nobody waits for it."""

_NAMES = (*SPECULATION, *GREEDY)
_TO_COMPARE_WITH = "to compare with"
"""Why a round was plain by which the reply's speed was measured."""

_EQUAL = 0.03
"""A speed that differs by less is called the same."""


@dataclass(frozen=True)
class RedoneReply:
    """The part of a reply that is done once more.

    Args:
        places: for each of its rounds, how many tokens are before it.
        total: the tokens of the whole reply.
        alone: why no engine can be asked; empty where one can.
    """

    turn: Turn
    reply: Reply
    rounds: Sequence[RoundDone]
    places: Sequence[int]
    tokens: Sequence[int]
    total: int
    alone: str = ""

    @classmethod
    def of(
        cls, chat: Chat, reply: Reply | None, at: int | None = None, most: int = WHOLE_TOKENS, *, alone: bool = False
    ) -> RedoneReply:
        """The first tokens of a reply of the chat, and its round `at` at least; the whole one where no engine is asked.

        Args:
            alone: whether its rounds are enough where no engine can be asked.

        Raises:
            UsageError: it cannot be done once more, and why.
        """
        turn = next((turn for turn in chat.turns if reply is not None and turn.reply is reply), None)
        if reply is None or turn is None:
            raise UsageError("there is no reply yet to do once more")
        if reply.stop is None and not (alone and chat.background.replaying):
            raise UsageError("the reply is still being written")
        why = ""
        if chat.background.replaying:
            why = "a recording cannot be done once more: that takes its model"
        elif chat.engine.phase in ("starting", "loading") and chat.engine.loading_pair == reply.facts.pair:
            why = f"{reply.facts.pair} is still being loaded"
        elif chat.engine.pair != reply.facts.pair:
            written = reply.facts.pair or "another pair"
            why = f"the reply was written with {written}; /pair {written} loads that"
        if why and not alone:
            raise UsageError(why)
        rounds, begun = reply.rounds.list, reply.facts.begun
        known = [*(token for token, _ in begun), *(piece.token for round in rounds for piece in round.pieces)]
        told = "".join(piece.text for round in rounds for piece in round.pieces)
        if not rounds or not reply.text[sum(count for _, count in begun) :].startswith(told):
            why = "the rounds of this reply were not kept, so there is nothing to do once more; a new reply has them"
            raise UsageError(why)
        places = list(accumulate((len(round.pieces) for round in rounds), initial=len(begun)))
        wanted = 0 if at is None else at + 1
        count = next((n for n in range(len(rounds), 0, -1) if places[n] <= most), 1)
        count = len(rounds) if why else max(count, min(wanted, len(rounds)))
        return cls(turn, reply, rounds[:count], places[:count], known[: places[count]], len(known), why)

    @property
    def settings(self) -> dict[str, Any]:
        """Those that it was written with, as far as they decide what is guessed and drawn."""
        return {name: value for name, value in self.reply.facts.settings.items() if name in _NAMES}

    def ask(self, chat: Chat, id: int, changes: Mapping[str, Any], at: int | None = None) -> WhatIf:
        """The question to the engine; round `at` is looked at."""
        compared = [round.why == _TO_COMPARE_WITH and not round.budget.get("nodes") for round in self.rounds]
        facts = self.reply.facts
        return WhatIf(
            id,
            chat.engine.pair,
            chat.before_reply(self.turn),
            facts.seed or 0,
            list(self.tokens),
            self.settings,
            changes_of(changes),
            [] if facts.begun else [n for n, plain in enumerate(compared) if plain],
            None if at is None or at >= len(self.places) else self.places[at],
            self.reply.constraint,
        )

    def tell(self, changes: Mapping[str, Any], at: int) -> WouldBe:
        """The answer that its rounds give by themselves; raises UsageError where they give none, and why."""
        try:
            return would_have_been(self.rounds, at, self.reply.facts.settings, changes)
        except UsageError as error:
            raise UsageError(f"{error} · {self.alone}") from None

    @property
    def part(self) -> str:
        """Which part of the reply the figures are of; empty where they are of all of it."""
        return "" if len(self.tokens) == self.total else f"in its first {numbers.tokens(len(self.tokens))}"


def may_be_asked(name: str) -> bool:
    """Whether a setting decides what is guessed and drawn, and needs no reload."""
    return (name in _NAMES or "." in name) and name != "method_options"


def changes_since(reply: Reply, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is otherwise in these settings than when the reply was written, of what decides guesses and draws."""
    had = reply.facts.settings
    if not had:
        return {}
    found = differences(had, settings)
    return {name: now for name, (_, now) in found.items() if may_be_asked(name) and now is not None}


def pairs_of(text: str) -> list[tuple[str, str]]:
    """`nodes=16 depth 6` → names and values.

    Raises:
        UsageError: a name without a value.
    """
    words = text.replace("=", " ").split()
    if len(words) % 2 or not words:
        raise UsageError("/whatif wants settings and their values: /whatif nodes=16 depth=6")
    return list(zip(words[::2], words[1::2], strict=True))


def changes_text(changes: Mapping[str, Any]) -> str:
    """`16 nodes, depth 6`."""
    return ", ".join(
        f"{value} node{'' if value == 1 else 's'}" if name == "nodes" else f"{name} {numbers.setting(value)}"
        for name, value in changes.items()
    )


def length_of(rounds: RedoneRounds) -> float:
    return rounds.tokens / max(1, rounds.rounds)


def sentence(changes: Mapping[str, Any], answer: WouldBe, part: str = "", *, alone: bool = False) -> str:
    """`16 nodes: 2.4 instead of 2.1 a round, at 1.3 × the price: 12 % slower`, of what, and what is an estimate.

    Args:
        alone: whether the kept rounds gave the answer.
    """
    said = f"{changes_text(changes)}: {comparison(answer)}"
    if alone:
        return f"{said} (estimate: by the rounds as they were kept, no model asked)"
    doubts = [] if answer.decided else ["its text would have become another"]
    doubts += [] if answer.measured else ["prices by these rounds alone"]
    said = ", ".join(filter(None, (said, part, "guessing in full" if answer.full else "")))
    return f"{said} (estimate: {'; '.join(doubts)})" if doubts else said


def comparison(answer: WouldBe) -> str:
    """`2.4 instead of 2.1 a round, at 1.3 × the price: 12 % slower`."""
    own, other = answer.own, answer.other
    if own is None or other is None:
        return "not known"
    was, now = length_of(own), length_of(other)
    price = other.round_s / own.round_s if own.round_s > 0 else 1.0
    digits = 1 if abs(now - was) >= 0.095 else 2
    tokens = f"{now:.{digits}f} instead of {was:.{digits}f} a round"
    if f"{now:.2f}" == f"{was:.2f}":
        tokens = f"{now:.2f} a round as before"
    gain = now / was / price - 1
    speed = f"{numbers.percent(abs(gain))} {'faster' if gain > 0 else 'slower'}"
    return f"{tokens}, at {price:.1f} × the price: {'as fast' if abs(gain) < _EQUAL else speed}"


SMALLER = ("nodes", "depth", "width")
"""The settings of which a smaller value leaves guesses out of the trees that are there."""


def would_have_been(
    rounds: Sequence[RoundDone], at: int, own: Mapping[str, Any], changes: Mapping[str, Any]
) -> WouldBe:
    """The rounds with the least likely, deepest or last guesses left out; the reply's text decides what is kept.

    Where a round keeps less, the next one begins inside its tree, and guesses what that tree has there: no fewer
    tokens a round than that. A pass takes what passes of so many rows took, drafting what it took.

    Raises:
        UsageError: the trees that are there do not tell.
    """
    limits = {}
    for name, value in changes.items():
        if name not in SMALLER:
            raise UsageError(f"the kept rounds tell of fewer nodes, less depth and less width; {name} takes the model")
        had = own.get(name) or max(int(round.budget.get(name, 0)) for round in rounds)
        if value > had:
            raise UsageError(f"the rounds were made with {name} {had}; what more would have done takes the model")
        limits[name] = int(value)
    pass_s = _pass_times(rounds)
    parts = [list(_parts(round, limits)) for round in rounds]
    drafting = [round.timings.draft_s + round.timings.learn_s for round in rounds]
    before_s = sum(pass_s(len(round.tree.tokens)) for round in rounds) + sum(drafting)
    after_s = sum(
        pass_s(len(one.tree.tokens)) + (took if len(one.tree.tokens) > 1 else 0.0)
        for several, took in zip(parts, drafting, strict=True)
        for one in several
    )
    tokens = sum(len(round.pieces) for round in rounds)
    count = sum(map(len, parts))
    return WouldBe(
        0,
        RedoneRounds(len(rounds), tokens, sum(map(_drafted, rounds)), before_s / len(rounds)),
        RedoneRounds(count, tokens, sum(_drafted(one) for several in parts for one in several), after_s / count),
        decided=True,
        round=parts[at][0],
    )


def _drafted(round: RoundDone) -> int:
    return len(round.tree.tokens) - 1


def _parts(round: RoundDone, limits: Mapping[str, int]) -> Iterator[RoundDone]:
    """The rounds that write what this one wrote: the first from its root, each other one from where the last ended."""
    line = [0, *round.verdict.path]
    at = 0
    while at < len(line) and at < len(round.pieces):
        kept = _kept(round, line[at], limits)
        end = next((n for n in range(at + 1, len(line)) if line[n] not in kept), len(line))
        yield _part(round, line, at, end, sorted(kept))
        at = end


def _kept(round: RoundDone, root: int, limits: Mapping[str, int]) -> set[int]:
    """The nodes below this root that fit the limits: the likeliest ones, where drafters said how likely all are."""
    tree = round.tree
    logprob = {draw.child: draw.draft_logprob for draw in tree.draws}
    depth, said = {root: 0}, {root: 0.0}
    known = all(logprob.get(node) is not None for node in range(1, len(tree.tokens)))
    width, deepest = limits.get("width", len(tree.tokens)), limits.get("depth", len(tree.tokens))
    children = Counter[int]()
    inner = range(root + 1, len(tree.tokens))
    for node in sorted(inner, key=lambda node: (tree.parents[node], -(logprob[node] or 0.0) if known else 0.0, node)):
        parent = tree.parents[node]
        children[parent] += 1
        if parent not in depth or depth[parent] >= deepest or children[parent] > width:
            continue
        depth[node] = depth[parent] + 1
        said[node] = said[parent] + (logprob[node] or 0.0) if known else 0.0
    order = sorted((node for node in depth if node != root), key=lambda node: (-said[node], node))
    return {root, *order[: limits.get("nodes", len(order))]}


def _part(round: RoundDone, line: Sequence[int], at: int, end: int, kept: Sequence[int]) -> RoundDone:
    """The round from node `line[at]` on whose tree has these nodes, and which keeps those of the line before `end`."""
    tree, verdict = round.tree, round.verdict
    number = {node: place for place, node in enumerate(kept)}
    visited = set(line[at:end])
    reasons: list[Reason] = ["rejected" if tree.parents[node] in visited else "unreached" for node in kept]
    for place, node in enumerate(kept):
        if verdict.reasons[node] in ("pruned", "cut") or node in visited:
            reasons[place] = verdict.reasons[node]
    reasons[0] = "accepted"
    cut = replace(
        tree,
        tokens=[tree.tokens[node] for node in kept],
        parents=[-1, *(number[tree.parents[node]] for node in kept[1:])],
        texts=[tree.texts[node] for node in kept],
        draws=[replace(draw, child=number[draw.child]) for draw in tree.draws if number.get(draw.child, 0)],
        target_logprob=[tree.target_logprob[node] if tree.parents[node] in visited else None for node in kept],
        forbidden=[replace(one, parent=number[one.parent]) for one in tree.forbidden if one.parent in number],
    )
    said = replace(verdict, path=[number[node] for node in line[at + 1 : end]], reasons=reasons)
    pieces = round.pieces[at:]
    if end < len(line):
        own, logprob = line[end], tree.target_logprob[line[end]]
        said = replace(said, bonus=tree.tokens[own], bonus_text=tree.texts[own], bonus_logprob=logprob)
        pieces = round.pieces[at:end]
        pieces[-1:] = [replace(last, origin="target") for last in pieces[-1:]]
    return replace(round, tree=cut, verdict=said, pieces=pieces)


def _pass_times(rounds: Sequence[RoundDone]) -> Callable[[int], float]:
    """Seconds of a pass by its rows: the median of those of so many, and between two of them in proportion."""
    took: dict[int, list[float]] = defaultdict(list)
    for round in rounds:
        took[len(round.tree.tokens)].append(round.timings.verify_s)
    known = {rows: statistics.median(seconds) for rows, seconds in took.items()}

    def pass_s(rows: int) -> float:
        low = max((known_rows for known_rows in known if known_rows <= rows), default=min(known))
        high = min((known_rows for known_rows in known if known_rows >= rows), default=max(known))
        share = (rows - low) / (high - low) if low < rows < high else 0.0
        return known[low] + (known[high] - known[low]) * share

    return pass_s
