"""Every contestant answers every prompt, by turns in one process; and `--floor`: none is slower than plain decoding."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specchat.bench.configurations import AUTO, separate
from specchat.bench.contestants import Contestant, Ours
from specchat.bench.measured_reply import Interval, Measured
from specchat.bench.report import Report
from specchat.bench.workloads import Question
from specchat.drafters import DRAFTERS
from specchat.errors import UsageError, nearest
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

Encode = Callable[[list[dict[str, str]]], list[int]]
"""Messages → the prompt's tokens."""

_WARM_UP = "Name three colours."


@dataclass
class InterleavedRun:
    """Measures contestants against the first of them, plain decoding; `measured` grows reply by reply.

    Args:
        room: longest prompt that leaves room for a reply.
        seed: noise of the first reply; every prompt has its own, the same for all contestants.
        on_reply: hears (who, about which question) before every reply, taught and warming ones included.
    """

    contestants: Sequence[Contestant]
    encode: Encode
    room: int
    seed: int = 0
    on_reply: Callable[[str, str], None] = lambda who, what: None
    measured: list[Measured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def steps(self, questions: Sequence[Question]) -> int:
        """How many times `on_reply` will be called, if no prompt is too long."""
        turns = sum(len(question.turns) for question in questions)
        return len(self.contestants) * (turns + 1) + len(self._taught()) * turns

    def run(self, questions: Sequence[Question]) -> None:
        """Warm up, then measure all questions.

        Contestants that may keep what they learn are measured in two halves: on each half after the replies of the
        other one, so that none has seen a reply before it is measured on it.
        """
        warm_up = self.encode([{"role": "user", "content": _WARM_UP}])
        for contestant in self.contestants:
            self.on_reply(contestant.name, "warm-up")
            contestant.warm_up(warm_up)
        if not self._taught():
            self._measure(questions, 0)
            return
        even, odd = questions[::2], questions[1::2]
        for half, other, first in ((even, odd, 0), (odd, even, len(even))):
            self._teach(other)
            self._measure(half, first)

    def _taught(self) -> list[Ours]:
        return [contestant for contestant in self.contestants if isinstance(contestant, Ours) and contestant.taught]

    def _teach(self, questions: Sequence[Question]) -> None:
        """Let those that learn forget everything, then answer these questions untimed."""
        for contestant in self._taught():
            contestant.forget()
            for question in questions:
                for _ in self._hold(question, [contestant], 0):
                    pass

    def _measure(self, questions: Sequence[Question], first: int) -> None:
        for number, question in enumerate(questions, first):
            gc.collect()
            for measured in self._hold(question, self.contestants, number):
                self.measured.append(measured)

    def _hold(self, question: Question, contestants: Sequence[Contestant], number: int) -> Iterator[Measured]:
        """One conversation. The first contestant's replies are the history of all, so that prompts are the same."""
        for contestant in contestants:
            contestant.begin()
        messages: list[dict[str, str]] = []
        seed = self.seed + number
        for turn, said in enumerate(question.turns):
            messages.append({"role": "user", "content": said})
            prompt = self.encode(messages)
            if len(prompt) > self.room:
                where = f"{question.question_id}, turn {turn + 1}"
                if (why := f"{where}: a prompt of {len(prompt)} tokens is too long") not in self.notes:
                    self.notes.append(why)
                return
            reply = ""
            for place in range(len(contestants)):
                contestant = contestants[(place + number + turn) % len(contestants)]
                self.on_reply(contestant.name, question.question_id)
                written = contestant.write(prompt, seed, question.json_schema)
                if contestant is contestants[0]:
                    reply = written.text
                yield Measured(
                    contestant.name, question.question_id, question.category, turn, place, tuple(prompt), seed, written
                )
            messages.append({"role": "assistant", "content": reply})


FLOOR = 0.97
"""The least accepted ratio to plain decoding: trials and a busy machine cost a few per cent."""


def missing_for_drafters(has_draft_model: bool, trained: Collection[str], datastore: bool) -> dict[str, str]:
    """What a pair lacks for each drafter; empty where nothing.

    Args:
        trained: drafters that there are trained weights for.
        datastore: whether there is one with the target's tokens.
    """
    missing = dict.fromkeys(DRAFTERS, "")
    for name, method in DRAFTERS.items():
        if method.needs_draft_model and not has_draft_model:
            missing[name] = "needs a draft model"
        if method.needs_weights and name not in trained:
            missing[name] = f"needs weights: specchat train PAIR --drafter {name}"
        if method.needs_datastore and not datastore:
            missing[name] = "needs a datastore: specchat datastore build"
        if method.needs_shipped_head:
            missing[name] = "needs a head in the target's files, which are not read yet: name it where they have one"
    return missing


def floor_comparison(text: str, base: Settings, missing: Mapping[str, str]) -> str:
    """Every drafter × policy under `goodput`, as `--compare` names configurations.

    Args:
        text: `auto` for all of them, or a part, such as `"suffix,token_recycling:template:nodes=80"`.

    Raises:
        UsageError: a word that names neither a drafter nor, after one, a policy.
    """
    usable = [name for name, what in missing.items() if not what]
    return ",".join(name for piece in separate(text) for name in _combinations(piece, base, usable))


def floor_verdict(report: Report) -> tuple[list[str], int]:
    """A line for each combination, the slowest first, and one on how many are too slow; and their number."""
    found = [
        (group.ratio, result.name)
        for run in report.runs
        for result in run.results
        if result.kind == "ours" and (group := result.group()) is not None
    ]
    found.sort(key=lambda one: one[0].value)
    below = sum(ratio.value < FLOOR for ratio, _ in found)
    lines = [f"{_ratio(ratio):<20} {name}{'  below' * (ratio.value < FLOOR)}" for ratio, name in found]
    verdict = f"{below} of {len(found)} below {FLOOR} × plain" if below else f"none below {FLOOR} × plain"
    return [*lines, verdict], below


def _combinations(piece: str, base: Settings, usable: Sequence[str]) -> list[str]:
    words = piece.split(":")
    names, values = [w for w in words if "=" not in w], [w for w in words if "=" in w]
    if not names or len(names) > 2:
        raise UsageError(
            f"--floor: {piece!r} must be {AUTO}, or drafter[:policy][:key=value…]; the controller is goodput"
        )
    drafters = [name for name in usable if name != "none"] if names[0] == AUTO else [names[0]]
    policies = names[1:] or list(TREE_POLICIES)
    for name, table in ((drafters[0], DRAFTERS), (policies[0], TREE_POLICIES)):
        if name not in table:
            raise UsageError(f"--floor: no {table.family} is called {name!r}{nearest(name, table)}")
    return [":".join([d, p, base.rule, "goodput", *values]) for d in drafters for p in policies]


def _ratio(ratio: Interval) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f}  {ratio.low:.2f} to {ratio.high:.2f}"
