"""Measures the server: tokens a second of 1, 2, 4 and 8 streams at a time, with and without guesses."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specchat.bench.workloads import own_workload
from specchat.config import state_dir
from specchat.config.directories import cache_dir, config_dir, data_dir
from specchat.errors import EngineError, cut

STREAMS = (1, 2, 4, 8)
REPLIES = 32
"""Requests of each measurement, each another question: four for each of eight streams. Towards the end streams that
have no question left are idle, which counts the less the more questions there are."""

_PATIENCE_S = 600.0
_WARM = "Say hello."


@dataclass(frozen=True)
class ReplyTaken:
    """A reply that a client got: its text, its tokens, and the longest that it waited for a piece once it had begun."""

    text: str
    tokens: int
    longest_wait_s: float


@dataclass(frozen=True)
class StreamsMeasured:
    """The same requests, so many at a time.

    Args:
        guesses: whether the pair guesses as it is set to, or decodes plainly.
        seconds: from the first request to the end of the last reply, prompts included.
        longest_wait_s: the longest that any stream waited for its next piece.
        same_text: whether every reply is the one that is written alone, without guesses.
    """

    guesses: bool
    streams: int
    tokens: int
    seconds: float
    longest_wait_s: float
    same_text: bool = True

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def measure_server(
    words: Sequence[str], max_tokens: int, progress: Callable[[str], None] = lambda told: None
) -> Iterator[StreamsMeasured]:
    """Start a server for each measurement, so that no drafter has seen the replies, and ask it.

    Args:
        words: flags of `specchat serve`.

    Raises:
        EngineError: the server does not start, or refuses a request.
    """
    questions = [question.turns[0] for question in own_workload().in_turn()[:REPLIES]]
    alone: list[str] = []
    for guesses in (False, True):
        for streams in STREAMS:
            progress(f"{streams} at a time, {'with' if guesses else 'without'} guesses")
            flags = [*words, *([] if guesses else ["--controller=off"]), f"--parallel={streams}"]
            with _server(flags) as ask, ThreadPoolExecutor(streams) as clients:
                list(clients.map(lambda _: ask(_WARM, 16), range(streams)))  # what each place makes once
                began = time.perf_counter()
                taken = list(clients.map(lambda question: ask(question, max_tokens), questions))
                seconds = time.perf_counter() - began
            texts = [reply.text for reply in taken]
            alone = alone or texts
            waits = max(reply.longest_wait_s for reply in taken)
            yield StreamsMeasured(
                guesses, streams, sum(reply.tokens for reply in taken), seconds, waits, texts == alone
            )


def table(measured: Sequence[StreamsMeasured]) -> list[str]:
    """Lines of a table: each row compared with one at a time under the same settings."""
    lines = [f"{'':16}{'at a time':>10}{'tok/s':>9}{'×':>7}{'longest wait':>15}  text"]
    for one in measured:
        alone = next(other for other in measured if other.guesses == one.guesses and other.streams == 1)
        kind = "with guesses" if one.guesses else "without guesses"
        times = one.tokens_per_s / alone.tokens_per_s
        text = "the same" if one.same_text else "differs"
        wait = f"{one.longest_wait_s * 1000:.0f} ms"
        lines.append(f"{kind:16}{one.streams:>10}{one.tokens_per_s:>9.1f}{times:>7.2f}{wait:>15}  {text}")
    return lines


def _ask(port: int, key: str, question: str, max_tokens: int) -> ReplyTaken:
    """A reply, as a stream, greedily."""
    asked = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        line.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
        answer = line.getresponse()
        if answer.status != 200:
            raise EngineError(f"the server refuses a request: {cut(answer.read(4000).decode(errors='replace'))}")
        return _taken(answer)
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"the server does not answer: {error}") from None
    finally:
        line.close()


def _taken(answer: http.client.HTTPResponse) -> ReplyTaken:
    text, tokens, longest_s, last = "", 0, 0.0, 0.0
    for raw in answer:
        if not raw.startswith(b"data: {"):
            continue
        piece: dict[str, Any] = json.loads(raw[6:])
        if "error" in piece:
            raise EngineError(f"the server ends a reply: {cut(str(piece['error']))}")
        tokens = (piece.get("usage") or {}).get("completion_tokens", tokens)
        said = "".join(choice["delta"].get("content") or "" for choice in piece.get("choices", ()))
        if said:
            now = time.perf_counter()
            longest_s, last, text = max(longest_s, now - last if last else 0.0), now, text + said
    return ReplyTaken(text, tokens, longest_s)


@contextmanager
def _server(words: Sequence[str]) -> Iterator[Callable[[str, int], ReplyTaken]]:
    """A server with these flags and without any drafter's state of earlier replies, and a function that asks it."""
    with tempfile.TemporaryDirectory(prefix="specchat-bench-") as folder:
        home, key = Path(folder), secrets.token_hex(16)
        for name, place in (("cache", cache_dir()), ("config", config_dir()), ("data", data_dir())):
            place.mkdir(parents=True, exist_ok=True)
            (home / name).symlink_to(place.absolute(), target_is_directory=True)
        (home / "state").mkdir()
        if (profiles := state_dir() / "profiles.json").is_file():  # what passes cost on this machine
            shutil.copy(profiles, home / "state")
        with socket.socket() as door:
            door.bind(("127.0.0.1", 0))
            port = door.getsockname()[1]
        command = [sys.executable, "-m", "specchat", "serve", f"--port={port}", "--prompt-cache=off", *words]
        told = home / "told"
        with told.open("wb") as errors:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "SPECCHAT_HOME": folder, "SPECCHAT_SERVE_KEY": key},
            )
        try:
            assert server.stdout is not None, "the server was started with a pipe"
            if b"http://" not in server.stdout.readline():
                server.wait(10)
                raise EngineError(f"the server does not start: {cut(told.read_text(errors='replace').strip())}")
            yield partial(_ask, port, key)
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
