"""Functions that a reply may call: how chats write calls and results, and the grammars that hold a reply's calls.

A chat writes them in the model's own format, or, where that has no place for them, in Hermes models' words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ChatMessage = Mapping[str, Any]
"""`role` and `content`; with `calls` (each `id`, `name` and `arguments`) an assistant's message calls functions, and
with `answers`, the id of a call, a user's message is the result of that call."""

_ARGUMENTS = ('{"name": ', ', "arguments": ', "}")
_PARAMETERS = ('{"name": ', ', "parameters": ', "}")


@dataclass(frozen=True)
class CallForm:
    """How a model writes calls.

    Args:
        mark: what opens calls anywhere in a reply; empty where calls are all of a reply.
        opening, closing: what stands behind the mark and behind the calls.
        call: what stands before the name, between name and arguments, and behind these. The name is JSON, unless
            nothing stands before it.
        between: what stands between two calls.
        each: mark, opening and closing are around each call, not around all of them.
    """

    mark: str
    opening: str
    call: tuple[str, str, str]
    closing: str
    between: str
    each: bool = False

    def can_name(self, names: Iterable[str]) -> bool:
        """Whether calls of these functions can be told from what is around them."""
        return bool(self.call[0]) or all(map(_PLAIN_NAME.fullmatch, names))

    def written(self, name: str, arguments: str) -> str:
        """A reply with one call, whose arguments are this JSON."""
        before, middle, after = self.call
        said = json.dumps(name, ensure_ascii=False) if before else name
        return f"{self.mark}{self.opening}{before}{said}{middle}{arguments}{after}{self.closing}"


HERMES = CallForm("<tool_call>", "\n", _ARGUMENTS, "\n</tool_call>", "\n", each=True)

FORMS = (
    HERMES,  # Qwen too
    CallForm("<function=", "", ("", ">", ""), "</function>", "\n", each=True),  # Llama 3
    CallForm("[TOOL_CALLS]", "", ("", "[ARGS]", ""), "", "", each=True),  # Mistral since 2025
    CallForm("[TOOL_CALLS]", " [", _ARGUMENTS, "]", ", "),  # Mistral
    CallForm("[TOOL_CALLS]", "[", _ARGUMENTS, "]", ", "),
    CallForm("", "```tool_code\n", _ARGUMENTS, "\n```", "\n"),  # Gemma
    CallForm("", "```json\n", _ARGUMENTS, "\n```", "\n"),
    CallForm("", "[", _ARGUMENTS, "]", ", "),
    CallForm("", "", _PARAMETERS, "", "; "),  # Llama 3
    CallForm("", "", _ARGUMENTS, "", "\n"),
)
"""The forms that are known. In those of JSON `parameters` may stand in place of `arguments`."""

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
    said = told_in_words(tools)
    if found and found[0]["role"] == "system":
        return [{**found[0], "content": f"{found[0]['content']}\n\n{said}"}, *found[1:]]
    return [{"role": "system", "content": said}, *found]


def told_in_words(tools: Sequence[Any]) -> str:
    """The description of these functions in Hermes models' words."""
    return _TOLD.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


def _call_text(call: Mapping[str, Any]) -> str:
    return HERMES.written(call["name"], json.dumps(call["arguments"], ensure_ascii=False))


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


_PROBED = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
_PROBE = {"type": "function", "function": {"name": "probe", "description": "probe", "parameters": _PROBED}}
_ASKED = {"role": "user", "content": "?"}
_CALLING = {"role": "assistant", "content": "", "calls": [{"id": "1", "name": "probe", "arguments": {"x": 1}}]}


def form_of_template(written: Callable[[Sequence[ChatMessage], list[Any]], str | None]) -> CallForm | None:
    """The form in which a chat template writes an assistant's call; None where it is none of those known.

    Args:
        written: what the template makes of messages and tools, None where it has no place for them.
    """
    before = written([_ASKED], [_PROBE])
    if before is None:
        return HERMES  # told in words
    after = written([_ASKED, _CALLING], [_PROBE])
    if after is None:  # it writes no calls: what it says of them counts
        return HERMES if HERMES.mark in before else None
    reply = after[
        next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), len(before)) :
    ]
    others = [replace(form, call=_PARAMETERS) for form in FORMS if form.call == _ARGUMENTS]
    for plain in (str.strip, lambda text: "".join(text.split())):  # as it is, or else but for its white space
        for form in (*FORMS, *others):
            said = plain(form.written("probe", '{"x": 1}'))
            if plain(reply).startswith(said) or (form.mark and said in plain(after)):
                return form
    return None


_PLAIN_NAME = re.compile(r"[\w.:/-]+")
_LAID_OUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def calls_grammar(
    form: CallForm,
    tools: Mapping[str, Mapping[str, Any]],
    *,
    required: bool,
    single: bool,
    special: Mapping[str, int],
    controls: Sequence[int],
) -> str:
    """A grammar, in Lark's notation, of replies whose calls are of these tools and fit their parameters' schemas.

    Args:
        required: the reply is calls, at least one; otherwise it is any text, held from what opens a call on.
        special: those parts of the form that are control tokens, as `special_parts` finds them.
        controls: control tokens that may stand in free text.
    """
    opening, middle, after = form.call

    def literal(text: str) -> str:
        """A text, where parts of it may be control tokens."""
        parts = re.split("(" + "|".join(map(re.escape, special)) + ")", text) if special else [text]
        return " ".join(f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts if part)

    def said(name: str) -> str:
        return opening + (json.dumps(name, ensure_ascii=False) if opening else name)

    def any_call(opens: str) -> str:
        """One call of any of the tools, its name opened by so much."""
        return "(" + " | ".join(f"{opens}{number} args_{number}" for number in range(len(tools))) + ")"

    rules = [
        f"args_{number}: {literal(middle)} %json {json.dumps(_laid_out(schema))} {literal(after)}"
        for number, schema in enumerate(tools.values())
    ]
    rules += [f"name_{number}: {literal(said(name))}" for number, name in enumerate(tools)]
    call, between, closing = any_call("name_"), literal(form.between), literal(form.closing)
    further = "" if single else f"({between} {call})*"
    inside = f"{literal(form.opening)} {call} {'' if form.each else further} {closing}"
    if required:
        calls = f"{literal(form.mark)} {inside}"
        return "\n".join([f"start: {calls} {f'({between} {calls})*' if form.each and not single else ''}", *rules])
    rules += [f"control: <[{','.join(map(str, controls))}]>"] if controls else []
    if not form.mark:
        opens = [_expression(form.opening + said(name)) for name in tools]
        rules += [f"OPENS_{number}: /[ \\n]*{one}/" for number, one in enumerate(opens)]
        rules += [f"TEXT: /(.|\\n)+/ & ~/[ \\n]*({'|'.join(opens)})(.|\\n)*/", r"ANY: /(.|\n)*/"]
        before, behind = ("control*", "(control ANY)*") if controls else ("", "")
        start = f"start: {before} ({any_call('OPENS_')} {further} {closing} | TEXT {behind})?"
        return "\n".join([start, *rules])
    text = "(TEXT control)*" if controls else ""
    if form.mark in special:
        rules.append(f"opens: {text} TEXT {literal(form.mark)}")
    else:
        rules += [f"opens: {text} marked", f"marked[lazy]: TEXT {json.dumps(form.mark)}"]
    if form.each and form.closing and not single:
        start = f"start: (opens {inside})* {text} TEXT"
    else:  # without a closing, text that follows could not be told from the call
        again = f"({between} {literal(form.mark)} {inside})*" if form.each and not single else ""
        start = f"start: opens {inside} {again} | {text} TEXT"
    return "\n".join([start, r"TEXT: /(.|\n)*/", *rules])


def special_parts(form: CallForm, control: Callable[[str], int | None]) -> dict[str, int]:
    """The parts of a form that are control tokens, and which; `control` says whether a text is one."""
    parts = {part for part in (form.mark, form.call[1]) if part}
    return {part: token for part in parts if (token := control(part)) is not None}


def _expression(text: str) -> str:
    """An expression that matches this text alone."""
    return "".join(one if one.isascii() and one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text)


def _laid_out(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of parameters without those that it does not name, unless it speaks of them."""
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return {**closed, **schema, "x-guidance": _LAID_OUT}
