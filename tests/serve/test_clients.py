"""What other programs' clients make of the server: Anthropic's and OpenAI's packages, and programs that use them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import openai
import pytest
from serve.kit import KEY, AnsweringServer

from specchat.engine.protocol.commands import Generate

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'


def forecast(command: Generate) -> str:
    """Asks for the weather, and tells it when it is known."""
    last = command.messages[-1]
    if not command.tools:
        return f"You said: {last.content}"
    return "It rains." if last.answers else f"I look it up.\n{CALL}\n{CALL}"


@pytest.fixture(scope="module")
def server() -> Iterator[AnsweringServer]:
    running = AnsweringServer(forecast)
    yield running
    running.close()


def ask(line: HTTPConnection) -> int:
    """The status of an answer over this connection; it is not opened anew when the server has closed it."""
    line.request("GET", "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    answer = line.getresponse()
    answer.read()
    return answer.status


def test_an_idle_connection_stays_open_for_longer_than_clients_keep_it(server):
    with (
        closing(HTTPConnection("127.0.0.1", server.port)) as idle,
        closing(HTTPConnection("127.0.0.1", server.port)) as other,
    ):
        assert [ask(idle), ask(other)] == [200, 200]  # with the second, the server is done with the first
        server.loop.ahead_s += 100
        assert [ask(other), ask(idle), ask(other)] == [200, 200, 200]
        server.loop.ahead_s += 1000
        assert ask(other) == 200
        with pytest.raises(ConnectionError):
            ask(idle)


# ------------------------------------------------------------------------------------------- Anthropic's package

ANTHROPICS_TOOL = {"name": "weather", "description": "Tells the weather", "input_schema": PARAMETERS}
ASKED: dict[str, Any] = {"model": "test", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def claude(server: AnsweringServer) -> Any:
    anthropic = pytest.importorskip("anthropic")
    return anthropic.Anthropic(base_url=server.address, api_key=KEY, max_retries=0)


def test_anthropics_client_gets_a_message_whole_and_streamed(server, claude):
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    message = claude.messages.create(**ASKED, system=system, extra_body={"temperature": 0.5, "top_k": 5})
    assert [block.text for block in message.content] == ["You said: Hello"]
    assert (message.role, message.model, message.stop_reason) == ("assistant", "test", "end_turn")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (2, 1, 3)
    assert [(one.role, one.content) for one in server.asked[-1].messages] == [
        ("system", "Be brief."),
        ("user", "Hello"),
    ]
    with claude.messages.stream(**ASKED) as stream:
        kinds = [event.type for event in stream if event.type != "text"]
        assert stream.get_final_text() == "You said: Hello"
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * 3, "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    stopped = claude.messages.create(**ASKED, stop_sequences=["said", ": H"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("You ", "stop_sequence", "said")
    assert claude.messages.create(**{**ASKED, "max_tokens": 1}).stop_reason == "max_tokens"


def test_anthropics_client_calls_tools_and_gives_their_results(server, claude):
    asked = {**ASKED, "tools": [ANTHROPICS_TOOL]}
    message = claude.messages.create(**asked)
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert (message.content[1].name, message.content[1].input) == ("weather", {"city": "Bern"})
    assert message.stop_reason == "tool_use"
    assert json.loads(server.asked[-1].tools)[0]["function"]["parameters"] == PARAMETERS
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == ["text", "tool_use", "tool_use"]
    assert streamed.content[2].input == {"city": "Bern"}
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": said, "is_error": failed}
        for block, said, failed in zip(message.content[1:], ["rain", "no answer"], [False, True], strict=True)
    ]
    turns = [
        *ASKED["messages"],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    assert claude.messages.create(**{**asked, "messages": turns}).content[0].text == "It rains."
    _, called, *told = server.asked[-1].messages
    assert called.content == "I look it up.\n"
    assert [(call.name, call.arguments) for call in called.calls] == [("weather", {"city": "Bern"})] * 2
    assert [(one.content, one.answers) for one in told] == [
        ("rain", called.calls[0].id),
        ("Error: no answer", called.calls[1].id),
    ]
    only = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    single = claude.messages.create(**asked, tool_choice=only)
    assert [block.type for block in single.content] == ["text", "tool_use"]
    assert server.asked[-1].constraint is not None


def test_anthropics_client_counts_tokens(claude):
    counted = claude.messages.count_tokens(model="test", messages=ASKED["messages"], tools=[ANTHROPICS_TOOL])
    assert counted.input_tokens == len("Hello")


def test_anthropics_client_knows_the_errors(server, claude):
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match="max_tokens") as caught:
        claude.messages.create(**{**ASKED, "max_tokens": 0})
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "max_tokens: 0 is outside its range: 1 to 1000000"},
    }
    with pytest.raises(anthropic.NotFoundError, match="not served here"):
        claude.messages.create(**{**ASKED, "model": "gpt"})
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.address, api_key="wrong", max_retries=0).messages.create(**ASKED)


# ---------------------------------------------------------------------------------------------- OpenAI's package

OPENAIS_TOOL = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}


@pytest.fixture(scope="module")
def gpt(server: AnsweringServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_openais_client_gets_a_response_whole_and_streamed(server, gpt):
    asked = {"model": "test", "input": "Hello", "instructions": "Be brief.", "store": False}
    reply = gpt.responses.create(**asked, temperature=0.5, max_output_tokens=20)
    assert (reply.output_text, reply.status, reply.instructions) == ("You said: Hello", "completed", "Be brief.")
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (3, 3, 6)
    assert [(one.role, one.content) for one in server.asked[-1].messages] == [
        ("system", "Be brief."),
        ("user", "Hello"),
    ]
    events = list(gpt.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * 3,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert events[-1].response.output_text == "You said: Hello"
    with gpt.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_text == "You said: Hello"
    cut = gpt.responses.create(**asked, max_output_tokens=1)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_openais_client_calls_functions_and_gives_their_outputs(server, gpt):
    asked = {"model": "test", "tools": [OPENAIS_TOOL]}
    reply = gpt.responses.create(**asked, input="Hello")
    assert [item.type for item in reply.output] == ["message", "function_call", "function_call"]
    call = reply.output[1]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bern"})
    with gpt.responses.stream(**asked, input="Hello", parallel_tool_calls=False) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds.count("response.function_call_arguments.done") == 1
    assert [item.type for item in final.output] == ["message", "function_call"]
    said = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}, *reply.output[:2], said]
    assert gpt.responses.create(**asked, input=turns).output_text == "It rains."
    _, text, called, told = server.asked[-1].messages
    assert (text.content, called.calls[0].arguments) == ("I look it up.\n", {"city": "Bern"})
    assert (told.content, told.answers) == ("rain", called.calls[0].id)
    gpt.responses.create(**asked, input="Hello", tool_choice={"type": "function", "name": "weather"})
    assert server.asked[-1].constraint is not None


def test_openais_client_knows_the_errors_of_responses(gpt):
    with pytest.raises(openai.BadRequestError) as caught:
        gpt.responses.create(model="test", input="Hello", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"


# ------------------------------------------------------------------------------------------------ whole programs

FOLDERS = os.environ.get("SPECCHAT_CLIENTS", "")
"""Folders of programs that are tried besides those of PATH: `pip` and `npm` need not install them where tests run."""


def program(name: str) -> str:
    """Where a client's program is; skips the test where it is not installed."""
    found = shutil.which(name, path=os.pathsep.join([FOLDERS, os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(words: list[str], home: Path, **environment: str) -> str:
    """What a client prints, with a home of its own."""
    own = {"HOME": str(home), "PATH": f"{FOLDERS}{os.pathsep}{os.environ['PATH']}", **environment}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=120, cwd=home, env=own, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_llm_is_answered_and_calls_its_tools(server, tmp_path):
    llm = program("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f'- model_id: ours\n  model_name: test\n  api_base: "{server.address}/v1"\n  api_key_name: ours\n'
        "  supports_tools: true\n"
    )
    (tmp_path / "keys.json").write_text(json.dumps({"ours": KEY}))
    home = {"LLM_USER_PATH": str(tmp_path)}
    assert run([llm, "-m", "ours", "Hello"], tmp_path, **home) == "You said: Hello\n"
    assert run([llm, "-m", "ours", "--no-stream", "Hello"], tmp_path, **home) == "You said: Hello\n"
    function = "def weather(city: str) -> str:\n    return city + ' is wet'\n"
    assert "It rains." in run([llm, "-m", "ours", "--functions", function, "Hello"], tmp_path, **home)
    assert server.asked[-1].messages[-1].content == "Bern is wet"


def test_aider_changes_a_file(server, tmp_path, monkeypatch):
    aider = program("aider")
    (tmp_path / "greet.py").write_text('print("helo")\n')
    edit = 'greet.py\n```python\n<<<<<<< SEARCH\nprint("helo")\n=======\nprint("hello")\n>>>>>>> REPLACE\n```\n'
    monkeypatch.setattr(server, "says", lambda command: edit)
    words = [
        aider, "--model", "openai/test", "--openai-api-base", f"{server.address}/v1", "--openai-api-key", KEY,
        "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable",
        "--edit-format", "diff", "--map-tokens", "0", "--no-gitignore", "--no-detect-urls", "--message", "Fix the typo",
        "greet.py",
    ]  # fmt: skip
    run(words, tmp_path)
    assert (tmp_path / "greet.py").read_text() == 'print("hello")\n'


@pytest.mark.parametrize("api", ["openai-completions", "openai-responses", "anthropic-messages"])
def test_a_coding_agent_ends_its_task(server, tmp_path, monkeypatch, api):
    pi = program("pi")

    def task(command: Generate) -> str:
        done = sum(1 for message in command.messages if message.answers)
        write = {"name": "write", "arguments": {"path": "notes.txt", "content": "It was done.\n"}}
        look = {"name": "bash", "arguments": {"command": "cat notes.txt"}}
        steps = [f"I begin.\n<tool_call>\n{json.dumps(step)}\n</tool_call>" for step in (write, look)]
        return [*steps, f"The file says: {command.messages[-1].content}"][done]

    monkeypatch.setattr(server, "says", task)
    base = server.address if api == "anthropic-messages" else f"{server.address}/v1"
    ours = {"baseUrl": base, "api": api, "apiKey": KEY, "models": [{"id": "test", "maxTokens": 500}]}
    (tmp_path / "models.json").write_text(json.dumps({"providers": {"ours": ours}}))
    words = [pi, "-p", "--no-session", "--provider", "ours", "--model", "test", "Write notes and read them."]
    said = run(words, tmp_path, PI_CODING_AGENT_DIR=str(tmp_path), PI_OFFLINE="1")
    assert "The file says: It was done." in said
    assert (tmp_path / "notes.txt").read_text() == "It was done.\n"


def test_claude_code_ends_its_task(server, tmp_path, monkeypatch):
    claude = program("claude")
    look = {
        "name": "Bash",
        "arguments": {"command": "echo It was done. > notes.txt; cat notes.txt", "description": "x"},
    }
    monkeypatch.setattr(server, "says", lambda command: told_or_called(command, look))
    own = {"ANTHROPIC_BASE_URL": server.address, "ANTHROPIC_API_KEY": KEY}
    quiet = {"DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    words = [claude, "-p", "Write notes and read them.", "--model", "test", "--allowedTools", "Bash"]
    assert "The file says: It was done." in run(words, tmp_path, **own, **quiet)


def test_codex_ends_its_task(server, tmp_path, monkeypatch):
    codex = program("codex")
    look = {"name": "exec_command", "arguments": {"cmd": "echo It was done. > notes.txt; cat notes.txt"}}
    monkeypatch.setattr(server, "says", lambda command: told_or_called(command, look))
    (tmp_path / "config.toml").write_text(
        'model = "test"\nmodel_provider = "ours"\nweb_search = "disabled"\n[model_providers.ours]\nname = "ours"\n'
        f'base_url = "{server.address}/v1"\nenv_key = "OURS"\nwire_api = "responses"\n'
    )
    free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    words = [codex, "exec", "--disable", "multi_agent", *free, "Write notes and read them."]
    said = run(words, tmp_path, OURS=KEY, CODEX_HOME=str(tmp_path))
    assert re.search(r"The file says:.*It was done\.", said, re.DOTALL)


def told_or_called(command: Generate, call: dict[str, Any]) -> str:
    """What the last message says, where it is a result; else this call."""
    last = command.messages[-1]
    return f"The file says: {last.content}" if last.answers else f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
