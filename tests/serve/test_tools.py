"""Calls are read from a reply however it is cut into pieces, and what only looks like one stays text."""

from __future__ import annotations

import json

import pytest
from rows import each_row

from specchat.serve.tools import Call, CallReader

NAMES = ["add", "get"]
ONE = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TWO = '<tool_call>\n{"name": "get", "arguments": {"what": "</x> {"}}\n</tool_call>'
BARE, OTHER = ONE.split("\n")[1], TWO.split("\n")[1]


def read(text: str, size: int) -> tuple[str, list[tuple[str, object]]]:
    reader = CallReader(NAMES)
    found = [piece for at in range(0, len(text), size) for piece in reader.add(text[at : at + size])]
    found += reader.finish()
    said = "".join(piece for piece in found if isinstance(piece, str))
    calls = [piece for piece in found if isinstance(piece, Call)]
    assert [call.index for call in calls] == list(range(reader.count))
    assert len({call.id for call in calls}) == len(calls)
    return said, [(call.name, json.loads(call.arguments)) for call in calls]


ADD, GET = ("add", {"a": 1}), ("get", {"what": "</x> {"})


@each_row("size", [1, 3, 7, 1000])
@each_row(
    ("text", "said", "calls"),
    [
        ("Hello <b> there", "Hello <b> there", []),
        (ONE, "", [ADD]),
        (f"{ONE}\n{TWO}\n", "", [ADD, GET]),
        (f"I add.\n{ONE}", "I add.\n", [ADD]),
        ('{"name": "add", "arguments": {"a": 1}}', "", [ADD]),
        (' {"name": "add", "parameters": {"a": 1}}', "", [ADD]),
        ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', []),
        ('{"name": "add", "arguments": 1}', '{"name": "add", "arguments": 1}', []),
        ('{"name": ["add"], "arguments": {}}', '{"name": ["add"], "arguments": {}}', []),
        ('{"name": "add", "arguments": {"a": NaN}}', '{"name": "add", "arguments": {"a": NaN}}', []),
        ('{"name": "add", "arguments": {"a": 1e999}}', '{"name": "add", "arguments": {"a": 1e999}}', []),
        ("<tool_call>\nnonsense\n</tool_call>", "<tool_call>\nnonsense\n</tool_call>", []),
        ("<tool_call>\n{", "<tool_call>\n{", []),
        ("So <tool_ca", "So <tool_ca", []),
        (ONE.removesuffix("</tool_call>"), "", [ADD]),
        ("", "", []),
        (f"{ONE}\n<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", [ADD]),
        (f"{BARE}; {OTHER}", "", [ADD, GET]),
        (f"{BARE}\n{OTHER}\n", "", [ADD, GET]),
        (f"[{BARE}, {OTHER}]", "", [ADD, GET]),
        (f"[ {BARE} ]", "", [ADD]),
        (f"<|python_tag|>{BARE}", "", [ADD]),
        (f"[TOOL_CALLS] [{BARE}, {OTHER}]", "", [ADD, GET]),
        (f"I add. [TOOL_CALLS][{BARE}]", "I add. ", [ADD]),
        (f"```json\n{BARE}\n```", "", [ADD]),
        (f"```\n{BARE}\n```", "", [ADD]),
        (f"```tool_code\n[{BARE}, {OTHER}]\n```\n", "", [ADD, GET]),
        ('<function=add>{"a": 1}</function>', "", [ADD]),
        ('So: <function=add>{"a": 1}</function> <function=add>{"a": 1}</function>', "So: ", [ADD, ADD]),
        ("<function=add>{</function>", "<function=add>{</function>", []),
        (f"[{BARE}, 1]", f"[{BARE}, 1]", []),
        ('So [TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[CALL_ID]x1[ARGS] {"a": 1}', "So ", [ADD, ADD]),
        ("[TOOL_CALLS]add[ARGS]{", "[TOOL_CALLS]add[ARGS]{", []),
        (ONE.replace("1", '"</tool_call>"'), "", [("add", {"a": "</tool_call>"})]),
        ("[a link](b) <function", "[a link](b) <function", []),
        ("```python\nprint(1)\n```", "```python\nprint(1)\n```", []),
        ("```json\n[1]\n```", "```json\n[1]\n```", []),
        ("[" * 5000, "[" * 5000, []),
    ],
)
def test_calls_are_told_from_text(text: str, said: str, calls: list[object], size: int) -> None:
    assert read(text, size) == (said, calls)


def test_text_is_given_as_soon_as_it_cannot_begin_a_call() -> None:
    reader = CallReader(NAMES)
    assert reader.add("Well") == ["Well"]
    assert reader.add(" <tool") == [" "]
    assert reader.add("box>") == ["<toolbox>"]
    assert CallReader(NAMES).add("[a]") == ["[a]"]
    assert CallReader(NAMES).add("```python") == ["```python"]


@pytest.mark.parametrize("size", [1, 1000])
def test_of_several_calls_one_is_given_where_one_is_wanted(size: int) -> None:
    for text in (f"Well. {ONE} {TWO} So.", f"Well. [TOOL_CALLS][{BARE}, {OTHER}]"):
        reader = CallReader(NAMES, single=True)
        found = [piece for at in range(0, len(text), size) for piece in reader.add(text[at : at + size])]
        found += reader.finish()
        assert "".join(piece for piece in found if isinstance(piece, str)) == "Well. "
        assert [piece.name for piece in found if isinstance(piece, Call)] == ["add"]
