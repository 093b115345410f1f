"""Calls are read from a reply however it is cut into pieces, and what only looks like one stays text."""

from __future__ import annotations

import json

from rows import each_row

from specchat.serve.tools import Call, CallReader, call_text

NAMES = ["add", "get"]
ONE, TWO = call_text("add", {"a": 1}), call_text("get", {"what": "</x> {"})


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
        ("<tool_call>\nnonsense\n</tool_call>", "<tool_call>\nnonsense\n</tool_call>", []),
        ("<tool_call>\n{", "<tool_call>\n{", []),
        ("So <tool_ca", "So <tool_ca", []),
        (ONE.removesuffix("</tool_call>"), "", [ADD]),
        ("", "", []),
    ],
)
def test_calls_are_told_from_text(text: str, said: str, calls: list[object], size: int) -> None:
    assert read(text, size) == (said, calls)


def test_text_is_given_as_soon_as_it_cannot_begin_a_call() -> None:
    reader = CallReader(NAMES)
    assert reader.add("Well") == ["Well"]
    assert reader.add(" <tool") == [" "]
    assert reader.add("box>") == ["<toolbox>"]
