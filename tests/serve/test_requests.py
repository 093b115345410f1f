"""A request's fields: each is honoured, or refused by its name."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from specchat.engine.protocol.codec import decode_command, encode
from specchat.engine.protocol.commands import Message, ReplyConstraint, ToolCall
from specchat.serve import completions, messages, responses
from specchat.serve.api_error import ApiError, anthropic_error, openai_error
from specchat.serve.completions import Form, read_request
from specchat.serve.requests import CheckedRequest
from specchat.serve.scheduler import generate

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> CheckedRequest:
    return read_request("chat.completion", json.dumps({"messages": HELLO, **fields}).encode())


def completion(**fields: Any) -> CheckedRequest:
    return read_request("text_completion", json.dumps({"prompt": "Once", **fields}).encode())


def refused(form: Form = "chat.completion", **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        (chat if form == "chat.completion" else completion)(**fields)
    assert caught.value.status == 400
    assert openai_error(caught.value)["error"]["type"] == "invalid_request_error"
    return caught.value


def test_the_least_request_changes_no_setting() -> None:
    assert chat() == CheckedRequest("chat.completion", None, (Message("user", "Hello"),), None, {})
    assert completion() == CheckedRequest("text_completion", None, (), "Once", {})
    assert completion(prompt=["Once"]).text == "Once"


def test_sampling_fields_become_settings() -> None:
    given = {
        "temperature": 0.5, "top_p": 0.9, "presence_penalty": -1, "frequency_penalty": 2, "top_k": 5, "min_p": 0.1,
        "repetition_penalty": 1.1, "max_tokens": 9,
    }  # fmt: skip
    assert chat(**given, stop="\n").settings == {**given, "stop": ["\n"]}
    assert chat(max_completion_tokens=9).settings == {"max_tokens": 9}
    assert chat(max_completion_tokens=9, max_tokens=9).settings == {"max_tokens": 9}


def test_a_response_format_becomes_a_constraint() -> None:
    assert chat(response_format={"type": "text"}) == chat()
    assert chat(response_format={"type": "json_object"}).constraint == ReplyConstraint("json_object")
    about = {"name": "it", "strict": True, "schema": {"type": "integer"}}
    asked = chat(response_format={"type": "json_schema", "json_schema": about})
    assert asked.constraint == ReplyConstraint("json_schema", '{"type":"integer"}')


def test_tools_are_told_and_a_choice_becomes_a_constraint() -> None:
    asked = chat(tools=[ADD])
    assert asked.tools is not None
    assert (asked.tools.names, json.loads(asked.tools.told), asked.constraint) == (
        ("add",),
        [ADD],
        ReplyConstraint("calls"),
    )
    assert chat(tools=[ADD], tool_choice="none") == chat(tools=[]) == chat()
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        for parallel, single in ((None, True), (False, True), (True, False)):
            held = chat(tools=[ADD], tool_choice=choice, parallel_tool_calls=parallel)
            assert held.constraint == ReplyConstraint("calls", chosen=("add",), single=single)
            assert held.tools is not None
            assert held.tools.constraint.single == single
    assert chat(tools=[ADD], parallel_tool_calls=False).constraint == ReplyConstraint("calls", single=True)


def test_calls_and_results_are_told_apart_from_texts() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    told = chat(
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "3"},
        ]
    )
    assert told.messages[1:] == (
        Message("assistant", "", (ToolCall("1", "add", {"a": 1}),)),
        Message("user", "3", answers="1"),
    )


def test_null_is_not_given() -> None:
    nothing = dict.fromkeys(["temperature", "stop", "seed", "tools", "logprobs", "prediction", "stream", "n", "model"])
    assert chat(**nothing) == chat()


def test_texts_come_as_parts_too_and_developers_are_systems() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = chat(
        messages=[{"role": "developer", "content": parts}, *HELLO],
        prediction={"type": "content", "content": parts},
        seed=-3,
    )
    assert asked.messages == (Message("system", "ab"), Message("user", "Hello"))
    assert (asked.reference, asked.seed) == ("ab", -3)


def test_the_figures_of_a_stream_come_when_asked_for() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).usage
    assert not chat(stream=True).usage


@each_row(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": 1e-7}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": 7}, "stop"),
        ({"n": True}, "n"),
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(2000)}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"tools": [{"type": "shell"}]}, "tools[0].type"),
        ({"tools": [ADD, ADD]}, "tools[1].function.name"),
        ({"tools": [ADD], "tool_choice": "some"}, "tool_choice"),
        (
            {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [ADD], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"functions": []}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object", "strict": True}}, "response_format.strict"),
        ({"response_format": "json"}, "response_format"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
        ({"prediction": {"type": "contents", "content": ""}}, "prediction.type"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"model": 5}, "model"),
        ({"user": 5}, "user"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["Hello"]}, "messages[0]"),
        ({"messages": [{"role": "function", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": "", "name": "Bo"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "tool", "content": "3", "tool_call_id": "x" * 5000}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "3", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": "[]"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"echo": 1}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"messages": HELLO}, "messages"),
    ],
)
def test_a_completion_refuses_what_it_has_not(fields: dict[str, Any], param: str) -> None:
    assert refused("text_completion", **fields).param == param


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"top_k": -1}, "-1 is outside its range: 0 to 1000000"),
        ({"max_tokens": 0}, "0 is outside its range: 1 to 1000000"),
        ({"seed": 2**63}, f"{2**63} is outside its range: {-(2**63)} to {2**63 - 1}"),
        ({"repetition_penalty": 0}, "0 is outside its range: 0.01 to 10"),
        ({"messages": [{"role": "user"}]}, "null is neither a text nor a list of text parts"),
        ({"n": True}, "true is not a whole number"),
        ({"temperature": "warm"}, '"warm" is not a number'),
        ({"stop": {"a": None}}, '{"a": null} is neither a text nor a list of texts'),
        ({"logit_bias": {"5": [1]}}, "[1] is not a number from -100 to 100"),
    ],
)
def test_values_and_ranges_are_told_as_json_writes_them(fields: dict[str, Any], told: str) -> None:
    assert told in refused(**fields).message


@pytest.mark.parametrize("fields", [{"x" * 1_000_000: 1}, {"model": ["x" * 1_000_000]}, {"n": {"x" * 1_000_000: 1}}])
def test_a_long_field_is_not_told_whole(fields: dict[str, Any]) -> None:
    error = refused(**fields)
    assert len(json.dumps(openai_error(error))) < 1500


def test_an_unknown_field_that_is_null_is_not_given() -> None:
    answer = {"role": "assistant", "content": "Hi", "reasoning_content": None}
    assert len(chat(messages=[*HELLO, answer, *HELLO], thinking=None).messages) == 3
    assert refused(messages=[{**answer, "reasoning_content": ""}]).param == "messages[0].reasoning_content"


def test_the_seed_minus_one_draws_a_fresh_one() -> None:
    seeds = {chat(seed=-1).seed for _ in range(5)}
    assert len(seeds) == 5
    assert all(seed is not None and 0 <= seed < 2**53 for seed in seeds)
    assert chat(seed=-2).seed == -2


def test_a_misspelt_field_is_told_its_right_name() -> None:
    error = refused(temprature=1)
    assert error.code == "unknown_parameter"
    assert "'temperature'" in error.message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b'"a"', b"\xff", b"[" * 100_000, b'{"a":1e999}', b"NaN"])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_request("chat.completion", body)
    assert caught.value.status == 400


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_KINDS = st.sampled_from([
    "text", "function", "json_object", "json_schema", "message", "function_call", "function_call_output", "input_text",
    "tool_use", "tool_result", "auto", "any", "tool", "none", "required", "custom", "content", "disabled",
])  # fmt: skip
_NAMES = st.sampled_from([
    "type", "role", "content", "text", "name", "function", "arguments", "parameters", "input", "input_schema", "id",
    "call_id", "tool_use_id", "tool_call_id", "tool_calls", "output", "format", "json_schema", "schema", "is_error",
    "cache_control", "5", "user_id", "include_usage", "disable_parallel_tool_use", "description", "strict",
])  # fmt: skip
_LIKELY = st.recursive(
    _json | _KINDS | st.sampled_from(["user", "assistant", "system", "tool", "developer", "{}", "x" * 5000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=12,
)
"""Values that are nested as those of the APIs are."""

_READERS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "chat.completion": (partial(read_request, "chat.completion"), {"messages": HELLO}, completions),
    "text_completion": (partial(read_request, "text_completion"), {"prompt": "Once"}, completions),
    "message": (messages.read_request, {"messages": HELLO, "max_tokens": 5}, messages),
    "counting": (partial(messages.read_request, counts=True), {"messages": HELLO}, messages),
    "response": (responses.read_request, {"input": "Hello"}, responses),
}
_FIELDS = sorted({
    *completions._COMMON, *completions._OWN["chat.completion"], *completions._OWN["text_completion"],
    *completions._ONLY, *completions._ONLY_IN["chat.completion"], *completions._ONLY_IN["text_completion"],
    *messages._KNOWN, *responses._KNOWN, *responses._ONLY, "unheard_of",
})  # fmt: skip


@pytest.mark.parametrize("api", _READERS)
@given(st.dictionaries(st.sampled_from(_FIELDS), _LIKELY, max_size=4))
def test_any_values_of_any_fields_are_read_or_refused(api: str, values: dict[str, Any]) -> None:
    read, body, _ = _READERS[api]
    sent = json.dumps({**body, **values}).encode(errors="replace")
    refusal = None
    try:
        asked = read(sent)
    except ApiError as error:
        refusal = error
    if refusal is None:
        for one in asked.each(-1):
            asked_of_engine(one)
    else:
        assert refusal.status == 400
        assert "\n" not in refusal.message
        json.dumps(openai_error(refusal))
        json.dumps(anthropic_error(refusal))


def asked_of_engine(asked: CheckedRequest) -> None:
    """The request reaches the engine as it is: whatever passes the checks is a command that the engine reads."""
    command = generate(7, asked, asked.settings)
    assert decode_command(encode(command)).id == 7


CITY = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": None}, "max_tokens: it is missing"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking: "),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences: at most 4"),
        ({"temperature": 3}, "temperature: 3 is outside"),
        ({"presence_penalty": 1}, "presence_penalty: there is no such field"),
        ({"metadata": {"user": "a"}}, "metadata.user: there is no such field"),
        ({"system": [{"type": "image"}]}, "system[0].type: "),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role: "),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits[0].type: ",
        ),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: "),
        ({"output_config": {"effort": 3}}, "output_config.effort: "),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type: "),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type: "),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].name: "),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type: "),
        ({"tools": [CITY, CITY]}, "tools[1].name: "),
        ({"tool_choice": {"type": "any"}}, "tool_choice: there are no tools"),
        ({"tools": [CITY], "tool_choice": {"type": "tool", "name": "wether"}}, "tool_choice.name: "),
        ({"tools": [CITY], "tool_choice": {"type": "required"}}, "tool_choice.type: "),
    ],
)
def test_a_message_refuses_what_it_has_not(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ApiError) as caught:
        messages.read_request(json.dumps({"max_tokens": 5, "messages": HELLO, **fields}).encode())
    assert caught.value.status == 400
    assert caught.value.message.startswith(told)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "{"}]}, "input[0].arguments"),
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (
            {"tools": [ADD["function"] | {"type": "function"}], "text": {"format": {"type": "json_object"}}},
            "text.format",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
)
def test_a_response_refuses_what_it_has_not(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        responses.read_request(json.dumps({"input": "Hello", **fields}).encode())
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_response_may_be_held_to_a_schema() -> None:
    held: dict[str, Any] = {
        "format": {"type": "json_schema", "name": "it", "schema": {"type": "integer"}, "strict": True}
    }
    asked = responses.read_request(json.dumps({"input": "Hello", "text": held}).encode())
    assert asked.constraint == ReplyConstraint("json_schema", '{"type":"integer"}')
    own = {"max_tokens": 5, "messages": HELLO, "output_config": {"effort": "low", "format": held["format"]}}
    assert messages.read_request(json.dumps(own).encode()).constraint == asked.constraint
