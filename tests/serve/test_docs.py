"""The examples of docs/serve.md work as they are printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve.kit import KEY, Server

PAGE = (Path(__file__).parents[2] / "docs/serve.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- example (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(scope="module")
def server(preloaded_module: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server("--pair", "scripted", home=tmp_path_factory.mktemp("home"))
    yield running
    assert running.close() == 0


def printed(server: Server, program: str, *names: str) -> str:
    """What these examples print, one after the other, when they ask this server."""
    source = "\n".join(EXAMPLES[name] for name in names)
    assert source.count("127.0.0.1:8000") == len(names)
    source = source.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    environment = {**os.environ, "SPECCHAT_SERVE_KEY": KEY}
    done = subprocess.run([program, "-c", source], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_examples_are_tried() -> None:
    assert set(EXAMPLES) == {"curl", "curl-stream", "python", "prediction"}


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_curl_examples_are_answered(server: Server) -> None:
    reply = json.loads(printed(server, "bash", "curl"))
    assert reply["usage"]["completion_tokens"] == 30
    events = printed(server, "bash", "curl-stream").split("\n\n")
    pieces = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
    assert text == reply["choices"][0]["message"]["content"]
    assert events[-2:] == ["data: [DONE]", ""]


def test_the_python_examples_are_answered(server: Server) -> None:
    told = printed(server, sys.executable, "python", "prediction")
    assert re.search(r"tokens per round: \d.*predicted tokens that stood: \d", told, re.DOTALL)
