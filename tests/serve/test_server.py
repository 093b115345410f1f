"""`specchat serve` as its clients meet it: OpenAI's own client, many at once, hostile input, an engine that dies."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from typing import Any

import openai
import pytest
from serve.kit import KEY, PATIENCE_S, Server, raw_post

from specchat.bench import serving
from specchat.errors import EngineError
from specchat.models.backends.scripted import ScriptedVocabulary

HELLO: list[Any] = [{"role": "user", "content": "What are you?"}]
CHAT = {"model": "scripted", "messages": HELLO}


@pytest.fixture(scope="module")
def server(preloaded_module: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests; those that break its engine find it repaired."""
    running = Server("--pair", "scripted", "--queue", "60", home=tmp_path_factory.mktemp("home"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def recited(server: Server) -> str:
    """The whole reply to HELLO."""
    reply = server.client.chat.completions.create(**CHAT)
    assert reply.choices[0].finish_reason == "stop"
    return str(reply.choices[0].message.content)


def chat(server: Server, **fields: Any) -> Any:
    return server.client.chat.completions.create(**{**CHAT, "max_tokens": 8, **fields})


# ------------------------------------------------------------------------------------- what is answered


def test_a_chat_is_answered_with_its_figures(server, recited):
    reply = chat(server, max_tokens=20)
    assert reply.object == "chat.completion"
    assert recited.startswith(reply.choices[0].message.content)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 20
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 20
    assert reply.usage.acceptance_length >= 1
    assert reply.usage.speedup is None


def test_a_stream_brings_the_same_text_and_the_figures_last(server, recited):
    chunks = list(chat(server, max_tokens=None, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == recited
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 100
    assert {chunk.usage for chunk in chunks[:-1]} == {None}
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_is_written_as_openai_writes_it(server):
    with server.client.chat.completions.with_streaming_response.create(**CHAT, max_tokens=3, stream=True) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = list(answer.iter_lines())
    events = [line for line in lines if line]
    assert lines[1::2] == [""] * len(events)
    assert all(line.startswith("data: ") for line in events)
    assert events[-1] == "data: [DONE]"
    assert "usage" not in json.loads(events[0].removeprefix("data: "))


def test_a_completion_goes_on_with_its_text(server):
    reply = server.client.completions.create(model="scripted", prompt="A tree is wide where the draft", max_tokens=5)
    assert reply.choices[0].text == " is unsure and deep where"
    stream = server.client.completions.create(
        model="scripted", prompt="A tree is wide where the draft", max_tokens=5, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == reply.choices[0].text


def test_the_pair_and_its_target_are_the_models(server):
    assert {model.id for model in server.client.models.list()} == {"scripted"}
    assert server.client.models.retrieve("scripted").owned_by == "specchat"
    with pytest.raises(openai.NotFoundError, match="scripted"):
        server.client.models.retrieve("scirpted")
    with pytest.raises(openai.NotFoundError, match="not served here"):
        chat(server, model="gpt-9")


def test_a_stop_string_ends_the_reply_and_is_no_part_of_it(server, recited):
    word = recited.split()[6]
    reply = chat(server, max_tokens=None, stop=[word, "never"])
    assert reply.choices[0].message.content == recited.partition(word)[0]
    assert reply.choices[0].finish_reason == "stop"


def test_one_seed_is_one_text_and_another_is_another(server):
    def text(seed: int) -> str:
        return str(chat(server, seed=seed, temperature=2, max_tokens=25).choices[0].message.content)

    assert text(3) == text(3) != text(4)


def test_penalties_and_nuclei_act(server, recited):
    warm = {"temperature": 1.5, "seed": 5, "max_tokens": 25}
    free = chat(server, **warm).choices[0].message.content
    assert recited.startswith(chat(server, **warm, top_p=0.01).choices[0].message.content)
    assert not recited.startswith(free)
    assert chat(server, **warm, frequency_penalty=2, presence_penalty=2).choices[0].message.content != free


def test_a_predicted_reply_comes_in_fewer_rounds(server, recited):
    plain = chat(server, max_tokens=None)
    guided = chat(server, max_tokens=None, prediction={"type": "content", "content": recited})
    assert guided.choices[0].message.content == recited
    assert guided.usage.acceptance_length > plain.usage.acceptance_length
    details = guided.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > guided.usage.completion_tokens / 2
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0


def test_log_probabilities_stand_beside_the_text_they_are_of(server, recited):
    asked = {"max_tokens": 12, "temperature": 1.2, "seed": 3, "logprobs": True, "top_logprobs": 2}
    whole = chat(server, **asked).choices[0]
    told = whole.logprobs.content
    assert "".join(one.token for one in told) == whole.message.content
    assert all(bytes(one.bytes).decode() == one.token for one in told)
    assert all(len(one.top_logprobs) == 2 for one in told)
    for one in told:
        best = one.top_logprobs[0]
        assert one.logprob <= best.logprob <= 0
        assert (one.token == best.token) == (one.logprob == best.logprob)
    chunks = [chunk.choices[0] for chunk in chat(server, **asked, stream=True)]
    assert [one for chunk in chunks if chunk.logprobs for one in chunk.logprobs.content] == told
    word = recited.split()[6]
    cut = chat(server, max_tokens=None, stop=word, logprobs=True).choices[0]
    assert "".join(one.token for one in cut.logprobs.content).startswith(cut.message.content)
    assert not "".join(one.token for one in cut.logprobs.content[:-1]).endswith(word)


def test_several_replies_are_those_of_seeds_that_follow(server):
    asked = {"max_tokens": 9, "temperature": 2, "seed": 2**63 - 2}
    seeds = [2**63 - 2, 2**63 - 1, -(2**63)]
    alone = [chat(server, **{**asked, "seed": seed}).choices[0].message.content for seed in seeds]
    several = chat(server, **asked, n=3)
    assert [choice.message.content for choice in several.choices] == alone
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.usage.completion_tokens == 27
    assert len(set(alone)) == 3
    streamed, ends = ["", "", ""], []
    for chunk in chat(server, **asked, n=3, stream=True):
        (choice,) = chunk.choices
        streamed[choice.index] += choice.delta.content or ""
        ends += [choice.index] if choice.finish_reason else []
    assert (streamed, sorted(ends)) == (alone, [0, 1, 2])
    unseeded = chat(server, max_tokens=9, temperature=2, n=2).choices
    assert unseeded[0].message.content != unseeded[1].message.content


def test_a_bias_bans_a_token_and_calls_one(server):
    def first(**asked: Any) -> Any:
        return chat(server, max_tokens=1, logprobs=True, top_logprobs=2, **asked).choices[0].logprobs.content[0]

    free, called = first(), first(logit_bias={"65": 100})
    assert (called.token, called.top_logprobs[0]) == ("A", free.top_logprobs[0]), "told without the bias"
    assert called.logprob < free.logprob
    (banned,) = map(str, ScriptedVocabulary().encode(free.token))
    assert first(logit_bias={banned: -100}).token != free.token
    assert first().token == free.token
    with pytest.raises(openai.BadRequestError, match="logit_bias: the model has no token 16000000"):
        first(logit_bias={"16000000": 1})


def test_a_completion_repeats_its_prompt_with_log_probabilities(server):
    asked = {"model": "scripted", "prompt": "A tree is wide where the draft", "max_tokens": 5, "logprobs": 2}
    told = server.client.completions.create(**asked, echo=True).choices[0]
    assert told.text == "A tree is wide where the draft is unsure and deep where"
    assert "".join(told.logprobs.tokens) == told.text
    assert told.logprobs.text_offset == [
        len("".join(told.logprobs.tokens[:place])) for place in range(len(told.logprobs.tokens))
    ]
    assert told.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in told.logprobs.token_logprobs[1:])
    assert told.logprobs.top_logprobs[0] is None
    assert all(len(best) == 2 for best in told.logprobs.top_logprobs[1:])
    alone = server.client.completions.create(**asked).choices[0]
    assert alone.logprobs.token_logprobs == told.logprobs.token_logprobs[-5:]
    assert server.client.completions.create(**{**asked, "logprobs": None}, echo=True).choices[0].text == told.text
    chunks = [chunk.choices[0] for chunk in server.client.completions.create(**asked, echo=True, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == told.text
    assert [one for chunk in chunks if chunk.logprobs for one in chunk.logprobs.tokens] == told.logprobs.tokens
    assert [
        one for chunk in chunks if chunk.logprobs for one in chunk.logprobs.text_offset
    ] == told.logprobs.text_offset


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}


def test_a_schema_holds_the_reply_whole_and_streamed(server):
    fits = {"kind": {"enum": ["tree", "chain"]}, "wide": {"type": "boolean"}}
    schema = {"type": "object", "properties": fits, "required": ["kind", "wide"], "additionalProperties": False}
    whole = chat(server, max_tokens=60, seed=5, response_format=schema_format(schema))
    value = json.loads(whole.choices[0].message.content)
    assert value["kind"] in ("tree", "chain")
    assert value["wide"] in (True, False)
    assert whole.choices[0].finish_reason == "stop"
    pieces = chat(server, max_tokens=60, seed=5, response_format=schema_format(schema), stream=True)
    assert json.loads("".join(chunk.choices[0].delta.content or "" for chunk in pieces)) == value
    assert chat(server).choices[0].message.content[0] != "{", "the next request is free again"


@pytest.mark.parametrize("schema", [{"enum": []}, {"type": "foo"}, {"not": {}}, {"$ref": "#"}])
def test_a_schema_that_cannot_be_used_is_refused(server, schema):
    with pytest.raises(openai.BadRequestError) as refused:
        chat(server, response_format=schema_format(schema), stream=True)
    assert refused.value.param == "response_format"
    assert "cannot be used" in refused.value.message


ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "sign": {"enum": ["+", "-"]}},
            "required": ["a", "sign"],
            "additionalProperties": False,
        },
    },
}


def test_a_required_tool_is_called_with_arguments_that_fit(server):
    asked = {"max_tokens": 120, "tools": [ADD], "tool_choice": "required", "seed": 3}
    reply = chat(server, **asked).choices[0]
    assert (reply.finish_reason, reply.message.content) == ("tool_calls", None)
    (call,) = reply.message.tool_calls
    assert call.function.name == "add"
    arguments = json.loads(call.function.arguments)
    assert arguments["a"] in range(100)
    assert arguments["sign"] in "+-"
    chunks = list(chat(server, **asked, stream=True))
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    assert [part.function.name for part in parts if part.function.name] == ["add"]
    assert "".join(part.function.arguments for part in parts) == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    answer = {"role": "tool", "tool_call_id": call.id, "content": "7"}
    further = chat(server, tools=[ADD], messages=[*HELLO, reply.message.model_dump(), answer])
    assert further.choices[0].message.content
    assert further.choices[0].message.tool_calls is None


def test_a_prompt_too_long_for_the_context_is_told_so(server):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server, messages=[{"role": "user", "content": "\u00e9" * 5000}])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert "chat" not in caught.value.body["message"]


def test_an_empty_prompt_is_told_so(server):
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.completions.create(model="scripted", prompt="")
    assert (caught.value.code, caught.value.param) == ("invalid_value", "prompt")


def test_what_is_not_supported_is_refused_in_openais_form(server):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server, modalities=["audio"])
    assert (caught.value.param, caught.value.code) == ("modalities", "unsupported_value")


# -------------------------------------------------------------------------------------- who is let in


def test_requests_without_the_key_are_refused(server):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server.address, api_key="wrong", max_retries=0).models.list()
    assert server.post(b"{}", authorization="")[0] == 401
    assert server.post(b"{}", authorization=f"Basic {KEY}")[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost", "127.0.0.1.nip.io:{port}", ""])
def test_requests_under_another_host_name_are_refused(server, host):
    status, _ = server.post(b"{}", host=host.format(port=server.port))
    assert status in (400, 403)


def test_a_page_from_elsewhere_is_not_let_in(server):
    assert server.post(b"{}", origin="http://evil.example")[0] == 403
    assert server.post(b"{}", origin="null")[0] == 403
    assert server.post(b"{}", origin=f"http://127.0.0.1:{server.port}")[0] == 400  # let in; the body is refused


# ------------------------------------------------------------------------------------- hostile input


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[1]", 400),
        (b"\xff\xfe", 400),
        (b"[" * 200_000, 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 1}', 400),
        (b'{"messages": 5}', 400),
        (b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "stop": "\\u0000"}', 200),
        (b'{"messages": [{"role": "user", "content": "\\u0000\\u001b[31m"}], "max_tokens": 1}', 200),
        (b'{"seed": ' + b"9" * 5000 + b"}", 400),
        (b" " * (9 << 20), 413),
    ],
    ids=lambda value: f"{value[:30]!r}" if isinstance(value, bytes) else None,
)
def test_hostile_bodies_are_answered_and_do_no_harm(server, body, status):
    told, answer = server.post(body)
    assert told == status
    assert status == 200 or answer["error"]["message"]


def test_hostile_requests_are_refused(server):
    assert server.send(b"GET / HTTP/1.1\r\nx: " + b"a" * 100_000 + b"\r\n\r\n")[0] == 400
    assert server.send(b"\x16\x03\x01\x02\x00" * 20 + b"\r\n\r\n")[0] == 400
    assert server.post(b"{}", content_length="9" * 18)[0] == 413
    assert server.post(b"{}", content_length="-5")[0] == 400
    assert server.post(b"{}", path="/v1/" + "a" * 5000)[0] == 404
    assert len(json.dumps(server.post(b"{}", path="/v1/" + "a" * 20_000)[1])) < 1000
    assert server.post(b"{}", path="/v1/models")[0] == 405
    assert server.post(b"{}", path="/v1/models", upgrade="websocket", connection="upgrade, close")[0] == 405
    chunked = raw_post(server.port, b"", content_length="", transfer_encoding="chunked")
    assert server.send(chunked + b"zz\r\n")[0] == 400


def test_half_requests_delay_no_other_request(server):
    lines = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    try:
        for number, line in enumerate(lines):
            line.sendall(raw_post(server.port, b'{"messages": [')[: None if number % 2 else 60])
        assert chat(server).usage.completion_tokens == 8
    finally:
        for line in lines:
            line.close()


def test_silent_clients_without_number_lock_nobody_out(server):
    resource = pytest.importorskip("resource")
    if not hasattr(resource, "prlimit"):
        pytest.skip("the limit of another process can be set under Linux alone")
    before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (256, before[1]))
    lines: list[socket.socket] = []
    oldest = HTTPConnection("127.0.0.1", server.port, timeout=60)
    oldest.connect()
    oldest.auto_open = False  # once it is closed, it stays so
    try:
        while len(lines) < 400:
            with suppress(TimeoutError):  # the system's own queue is full for a moment
                lines.append(socket.create_connection(("127.0.0.1", server.port), timeout=0.3))
            if len(lines) % 20 == 0:
                oldest.request("GET", "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
                assert oldest.getresponse().read(), "who asks now and then is not silent"
        assert chat(server).usage.completion_tokens == 8
    finally:
        for line in (*lines, oldest):
            line.close()
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)


# --------------------------------------------------------------------------- many clients, and none at all


def test_fifty_clients_at_once_all_get_their_reply(server, recited):
    def ask(number: int) -> str:
        return str(chat(server, max_tokens=2 + number % 3).choices[0].message.content)

    with ThreadPoolExecutor(50) as clients:
        replies = list(clients.map(ask, range(50)))
    assert all(recited.startswith(reply) for reply in replies)
    assert len({len(reply) for reply in replies}) == 3


def test_requests_that_are_answered_together_get_what_each_gets_alone(server):
    def ask(number: int) -> str:
        own = {"seed": number, "temperature": 1.5 * (number % 2), "max_tokens": 40 + number}
        return str(chat(server, **own).choices[0].message.content)

    alone = [ask(number) for number in range(5)]
    with ThreadPoolExecutor(5) as clients:
        assert list(clients.map(ask, range(5))) == alone
    assert len(set(alone)) == 5


def test_streams_are_measured_against_one_at_a_time(server, monkeypatch):
    """Scripted replies do not get quicker together; what is counted is all that was written."""
    asked = []

    @contextmanager
    def running(words):
        asked.append(words[-1])
        yield partial(serving._ask, server.port, KEY)

    monkeypatch.setattr(serving, "_server", running)
    monkeypatch.setattr(serving, "REPLIES", 8)
    measured = list(serving.measure_server(["--pair=scripted"], 6))
    assert asked == [f"--parallel={streams}" for streams in serving.STREAMS] * 2
    assert {one.tokens for one in measured} == {6 * serving.REPLIES}
    assert all(one.same_text and one.tokens_per_s > 0 and one.longest_wait_s < 30 for one in measured)
    lines = serving.table(measured)
    assert len(lines) == 1 + 2 * len(serving.STREAMS)
    assert [line.split()[4] for line in lines if line.split()[2] == "1"] == ["1.00", "1.00"]
    assert "differs" in serving.table([replace(measured[0], same_text=False)])[1]


def test_a_server_that_does_not_start_is_told_of(away_from_home):
    with (
        pytest.raises(EngineError, match=r"the server does not start: .*scriptet"),
        serving._server(["--pair=scriptet"]),
    ):
        pass


def test_clients_that_leave_stop_what_they_asked_for(server):
    asked = json.dumps({**CHAT, "stream": True, "max_tokens": 4000, "temperature": 2}).encode()
    began = time.monotonic()
    for _ in range(20):  # each would write for many seconds
        line = socket.create_connection(("127.0.0.1", server.port))
        line.sendall(raw_post(server.port, asked))
        line.close()
    chat(server)
    stream = chat(server, max_tokens=4000, temperature=2, stream=True)
    next(iter(stream))
    stream.close()
    chat(server)
    assert time.monotonic() - began < 30


def test_a_full_queue_is_told_with_when_to_try_again_and_empties_when_they_leave(server):
    asked = raw_post(server.port, json.dumps({**CHAT, "max_tokens": 4000, "temperature": 2}).encode())
    lines = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60 + 8)]  # four are answered at once
    try:
        for line in lines:
            line.sendall(asked)
        found = re.search(rb"(?i)\r\nretry-after: (\d+)\r\n", refusal(lines))
        assert found is not None
        assert int(found[1]) >= 1
    finally:
        for line in lines:
            line.close()
    for _ in range(600):
        with suppress(openai.RateLimitError):
            assert chat(server, max_tokens=1).usage.completion_tokens == 1
            return
        time.sleep(0.1)
    pytest.fail("the queue is full still")


def refusal(lines: list[socket.socket]) -> bytes:
    """The first answer to these requests that says that the queue is full."""
    waiting = set(lines)
    while waiting:
        for line in select.select(waiting, [], [], PATIENCE_S)[0] or pytest.fail("nobody is answered"):
            waiting.remove(line)
            if b" 429 " in (answer := line.recv(65536)).partition(b"\r\n")[0]:
                return answer
    return pytest.fail("nobody was refused")


# -------------------------------------------------------------------------------- the engine dies; the end


def test_a_dead_engine_is_told_and_the_next_request_is_answered(server):
    before = server.engine_pid()
    streams = [chat(server, max_tokens=4000, temperature=2, stream=True) for _ in range(4)]
    for stream in streams:
        next(iter(stream))
    with ThreadPoolExecutor(2) as others:
        waiting = others.submit(chat, server)
        os.kill(before, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(openai.APIError, match="the engine died"):
                list(stream)
        assert waiting.result(60).usage.completion_tokens == 8
    assert server.engine_pid() != before


def test_told_to_stop_it_ends_calmly_and_takes_its_engine_along(server):
    """The last test of this file: afterwards there is no server."""
    engine = server.engine_pid()
    request = {**CHAT, "max_tokens": 4000, "temperature": 2, "stream": True}
    stream = server.make_client().chat.completions.create(**request)
    next(iter(stream))
    assert server.close(signal.SIGINT) == 0
    with pytest.raises(openai.APIError, match="the server is being stopped"):
        list(stream)
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)
    assert list(server.home.rglob("engine-*.log")) == []
    assert {line.partition(":")[0] for line in server.said.splitlines()} <= {"the engine died"}, (
        "broken requests are no news here"
    )
