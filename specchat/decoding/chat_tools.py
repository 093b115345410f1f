"""Functions that a reply may call, as chats write them: in a model's own chat format, or in Hermes models' words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ChatMessage = Mapping[str, Any]
"""`role` and `content`; with `calls` (each `id`, `name` and `arguments`) an assistant's message calls functions, and
with `answers`, the id of a call, a user's message is the result of that call."""

CALL_BEGINS, CALL_ENDS = "<tool_call>", "</tool_call>"

_TOLD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""What Hermes and Qwen models are told of functions."""


def in_words(messages: Sequence[ChatMessage], tools: Sequence[Any] = ()) -> list[dict[str, str]]:
    """The chat in Hermes models' words, for a chat format that has no place for tools.

    Results and calls that follow each other become one message: many formats want roles to alternate.
    """
    found: list[dict[str, str]] = []
    before = False
    for message in messages:
        role, content = message["role"], message["content"]
        about_tools = bool(message.get("answers") or message.get("calls"))
        if message.get("answers"):
            content = f"<tool_response>\n{content}\n</tool_response>"
        content = "\n".join([*([content] if content else []), *map(_call_text, message.get("calls", ()))])
        if found and found[-1]["role"] == role and (about_tools or before):
            found[-1] = {"role": role, "content": f"{found[-1]['content']}\n{content}"}
        else:
            found.append({"role": role, "content": content})
        before = about_tools
    if not tools:
        return found
    said = _TOLD.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if found and found[0]["role"] == "system":
        return [{**found[0], "content": f"{found[0]['content']}\n\n{said}"}, *found[1:]]
    return [{"role": "system", "content": said}, *found]


def _call_text(call: Mapping[str, Any]) -> str:
    said = json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)
    return f"{CALL_BEGINS}\n{said}\n{CALL_ENDS}"


def for_templates(messages: Sequence[ChatMessage]) -> Iterator[list[dict[str, Any]]]:
    """The chat as chat templates are given it; then, where messages have several calls, with one call in each.

    Ids become numbers of nine digits, which every template takes.
    """
    ids: dict[str, str] = {}
    names: dict[str, str] = {}
    turns: list[dict[str, Any]] = []
    for message in messages:
        if (answers := message.get("answers")) is not None and answers != "":
            told = {"tool_call_id": ids.get(answers, "000000000"), "name": names.get(answers, "")}
            turns.append({"role": "tool", "content": message["content"], **told})
            continue
        turn = {"role": message["role"], "content": message["content"]}
        calls = []
        for call in message.get("calls", ()):
            id = ids[call["id"]] = f"{len(ids):09d}"
            names[call["id"]] = call["name"]
            about = {"name": call["name"], "arguments": call["arguments"]}
            calls.append({"id": id, "type": "function", "function": about})
        last: dict[str, Any] = turns[-1] if turns else {"role": ""}
        if calls and last["role"] == "assistant":  # a text and its calls, or calls one by one, are one turn
            last["content"] = "\n".join(said for said in (last["content"], turn["content"]) if said)
            last["tool_calls"] = [*last.get("tool_calls", []), *calls]
        else:
            turns.append({**turn, "tool_calls": calls} if calls else turn)
    yield turns
    if any(len(turn.get("tool_calls", ())) > 1 for turn in turns):
        yield [*_one_call_each(turns)]


def _one_call_each(turns: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    results = {turn["tool_call_id"]: turn for turn in turns if turn["role"] == "tool"}
    for turn in turns:
        calls = turn.get("tool_calls", [])
        if len(calls) < 2:
            if turn["role"] != "tool" or turn["tool_call_id"] in results:
                yield turn
            continue
        for place, call in enumerate(calls):
            yield {**turn, "content": "" if place else turn["content"], "tool_calls": [call]}
            if (result := results.pop(call["id"], None)) is not None:
                yield result


def tells_all(written: str, turns: Sequence[dict[str, Any]]) -> bool:
    """Whether a template wrote every call and every result: one that knows of neither leaves them out."""
    names = [call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ())]
    results = [turn["content"].strip() for turn in turns if turn["role"] == "tool"]
    return all(name in written for name in names) and all(
        said in written or json.dumps(said)[1:-1] in written or json.dumps(said, ensure_ascii=False)[1:-1] in written
        for said in results
    )
