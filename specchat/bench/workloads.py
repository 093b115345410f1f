"""What is asked when speed is measured: questions from our own set, or from files in the usual formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specchat.config.file_reading import json_line, read_named
from specchat.errors import UsageError, cut, nearest, short

OWN = Path(__file__).with_name("prompts.jsonl")
"""Our own questions: chat, code, math, summarising and quoting a given text, translation, several turns."""

_COMPLETE = "Complete this Python function. Return the whole function.\n\n```python\n{prompt}\n```"


@dataclass(frozen=True)
class Question:
    """One conversation to hold: what the user says in each turn; the replies in between are the target's own."""

    question_id: str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class Workload:
    """A named list of questions."""

    name: str
    questions: tuple[Question, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories in the order in which they first occur."""
        return tuple(dict.fromkeys(question.category for question in self.questions))

    def only(self, categories: Sequence[str]) -> Workload:
        """The questions of these categories.

        Raises:
            UsageError: a category that does not occur.
        """
        for category in categories:
            if category not in self.categories:
                raise UsageError(f"{self.name} has no category {category!r}{nearest(category, self.categories)}")
        return replace(self, questions=tuple(q for q in self.questions if q.category in categories))

    def limited(self, count: int) -> Workload:
        """At most `count` questions, one of each category in turn, so that a short run still sees them all."""
        chosen = self.in_turn()[:count]
        return replace(self, questions=tuple(q for q in self.questions if q in chosen))

    def in_turn(self) -> list[Question]:
        """The questions, one of each category after the other."""
        by_category = [[q for q in self.questions if q.category == c] for c in self.categories]
        return [q for row in zip_longest(*by_category) for q in row if q is not None]

    def first_turns(self) -> Workload:
        """The same questions without their follow-ups."""
        return replace(self, questions=tuple(replace(q, turns=q.turns[:1]) for q in self.questions))


def own_workload() -> Workload:
    """The questions that come with specchat."""
    return load_workload(OWN, "specchat")


def load_workload(file: Path, name: str = "") -> Workload:
    """Questions from JSON lines, plain or gzipped: `question_id, category, turns` (the format of MT-Bench and
    Spec-Bench), or `task_id, prompt` (HumanEval's).

    A question that repeats an earlier one is left out: a drafter that learns would have seen its reply.

    Raises:
        UsageError: the file cannot be read, or a line is neither format; file and line are named.
    """
    questions: dict[tuple[str, ...], Question] = {}
    for number, record in _records(file):
        question = _question(record, f"{file}, line {number}")
        questions.setdefault(question.turns, question)
    if not questions:
        raise UsageError(f"{file} holds no questions")
    return Workload(name or file.name, tuple(questions.values()))


def _records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(read_named(file).split("\n"), 1):
        if line.strip():
            yield number, json_line(line, f"{file}, line {number}")


def _question(record: Any, where: str) -> Question:
    if isinstance(record, dict) and "turns" in record:
        turns = record["turns"]
        if not (isinstance(turns, list) and turns and all(isinstance(turn, str) and turn.strip() for turn in turns)):
            raise UsageError(f"{where}: turns = {short(turns)} must be a list of non-empty texts")
        return Question(str(record.get("question_id", where)), str(record.get("category", "all")), tuple(turns))
    if isinstance(record, dict) and isinstance(record.get("prompt"), str) and "task_id" in record:
        return Question(str(record["task_id"]), "code", (_COMPLETE.format(prompt=record["prompt"].rstrip()),))
    keys = cut(", ".join(record)) if isinstance(record, dict) else type(record).__name__
    raise UsageError(f"{where} is not a question: it needs `turns`, or `task_id` and `prompt` (it has: {keys})")
