"""`specchat serve` with its target in two processes, and with its target behind ssh: as with a target in the engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from serve.kit import Server
from tiny_models import add_tiny_pair

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Load, Message
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.worker import Worker

SETTINGS = {"pair": "tiny", "dtype": "float32", "drafter": "suffix", "temperature": 0.7, "max_tokens": 24}
SEEDS = (3, 4)


def texts(server: Server) -> list[str]:
    """Replies to two requests that are there at once."""

    def text(seed: int) -> str:
        return str(ask(server, seed=seed).choices[0].message.content)

    with ThreadPoolExecutor(2) as both:
        return list(both.map(text, SEEDS))


def ask(server: Server, **fields: Any) -> Any:
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    return server.client.chat.completions.create(model="tiny", messages=messages, **fields)


def other_process(server: Server) -> int:
    """The process that holds the target, or a part of it, and is not the engine."""
    listed = subprocess.run(["ps", "axeww", "-o", "pid=,args="], capture_output=True, text=True, check=False)
    ours = [line for line in listed.stdout.splitlines() if f"SPECCHAT_HOME={server.home} " in line]
    (pid,) = [
        line.split()[0] for line in ours if re.search(r"-m specchat(\.models\.rank_process| engine --target )", line)
    ]
    return int(pid)


@pytest.fixture(params=["ranks", "ssh"])
def server(
    request: pytest.FixtureRequest, preloaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Server, str, list[str]]]:
    """A server, what it says of a killed process, and what an engine without other processes writes."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    add_tiny_pair(tmp_path)
    said: list[ev.Event] = []
    worker = Worker(CommandQueue(), said.append)
    worker.answer(Load(SETTINGS))
    expected = []
    for seed in SEEDS:
        said.clear()
        worker.answer(Generate(1, [Message("user", "hello")], seed=seed))
        ended = said[-1]
        assert isinstance(ended, ev.Finished), ended
        expected.append(
            "".join(p.text for one in said if isinstance(one, ev.RoundDone) for p in one.pieces) + ended.tail
        )
    words = ["--device", "cpu:2"]
    if request.param == "ssh":
        words = ["--target-at", "ssh:box"]
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, script in (
            ("ssh", 'while [ "$1" != specchat ]; do shift; done\nexec "$@"\n'),
            ("specchat", f'exec "{sys.executable}" -m specchat "$@"\n'),
        ):
            (folder / name).write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    options = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    running = Server(*options, *words, home=tmp_path)
    yield running, {"ranks": "was ended by SIGKILL", "ssh": "the target at ssh:box is gone"}[request.param], expected
    running.close()


def test_two_at_once_one_that_leaves_and_a_killed_process(server: tuple[Server, str, list[str]]) -> None:
    running, lost, expected = server
    assert texts(running) == expected
    endless = {"max_tokens": 1900, "stream": True, "logit_bias": {"0": -100, "2": -100}}
    with ask(running, **endless) as stream:
        next(iter(stream))
    assert texts(running) == expected, "who left is not written for"
    engine, other = running.engine_pid(), other_process(running)
    stream = ask(running, **endless)
    next(iter(stream))
    os.kill(other, signal.SIGKILL)
    with pytest.raises(openai.APIError, match=lost):
        list(stream)
    with ThreadPoolExecutor(1) as waiting:  # a request that comes while the pair is loaded again waits for it
        assert waiting.submit(texts, running).result(120) == expected
    assert other_process(running) != other
    running.close()
    assert len(running.said.splitlines()) == 1, running.said
    assert lost in running.said
    with suppress(ProcessLookupError):
        os.kill(engine, 0)
        pytest.fail("the first engine is still there")
