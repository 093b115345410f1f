"""What the server's tests share: a server process on the scripted pair, and an engine that obeys the test."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai import OpenAI

from specchat.engine.protocol import commands as co
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.describe import settings_message
from specchat.engine.protocol.round_parts import Draw, Piece, Timings, Tree, Verdict
from specchat.serve.access import Access
from specchat.serve.loaded_engine import LoadedEngine
from specchat.serve.server import serve_requests
from specchat.settings import Settings

KEY = "a-key-of-the-tests"
PATIENCE_S = 60
LOSSLESS = ev.Losslessness(True, "it is a test")


class ObedientEngine:
    """A `Link` that answers at once, except that a reply goes on only when the test says so."""

    def __init__(self, wake: Callable[[], None], broken: str = "") -> None:
        self.sent: list[co.Command] = []
        self.closed = False
        self._wake = wake
        self._broken = broken
        self._events: list[ev.Event] = []
        self.silent = False  # whether it answers no `generate`

    @property
    def running(self) -> co.Generate:
        return [command for command in self.sent if isinstance(command, co.Generate)][-1]

    def send(self, command: co.Command) -> None:
        self.sent.append(command)
        settings = settings_message(Settings().but({"pair": "test"}))
        match command:
            case co.Load() if self._broken:
                self.say(ev.Failed("WeightsError", self._broken, during="load"))
            case co.Load():
                self.say(ev.Ready("test", "target", None, "cpu", "float32", 1, 64, 0, 0.0, settings, LOSSLESS))
            case co.Generate() if not self.silent:
                self.say(ev.Started(command.id, command.messages, 3, 1, 7, settings, LOSSLESS, "test"))
            case co.Cancel(id=id) if id is not None:
                self.finish("cancelled", id)
            case _:
                pass

    def write(self, text: str, proposer: str = "prompt_lookup", id: int | None = None) -> None:
        """A round with one accepted guess that reads `text`, and no bonus."""
        tree = Tree([1, 2], [-1, 0], ["", text], [Draw(1, "point", proposer)], [None, -0.1])
        verdict = Verdict([1], None, "", None, ["accepted", "accepted"])
        pieces = [Piece(2, text, "drafted")]
        about = self.running.id if id is None else id
        self.say(ev.RoundDone(about, 0, 0.0, 4, {"nodes": 1}, tree, verdict, pieces, Timings(0.0, 0.0, 0.0)))

    def finish(self, stop: ev.StopReason = "end", id: int | None = None, tail: str = "") -> None:
        stats = ev.Stats(2, 3, 4, 1, 9.0, 1.5, 0.25, 0.1, 0.1, 0.1, 0.1, prompt_tokens=3, reused_tokens=1, speedup=1.25)
        self.say(ev.Finished(self.running.id if id is None else id, stop, tail, stats, 1.0))

    def die(self) -> None:
        self.say(ev.Died(-9, "out of memory"))

    def say(self, event: ev.Event) -> None:
        self._events.append(event)
        self._wake()

    def drain(self) -> list[ev.Event]:
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        self.closed = True


class AnsweringEngine(ObedientEngine):
    """Writes at once what a function of the command says, a word a round, under the request's stop strings."""

    def __init__(self, wake: Callable[[], None], says: Callable[[co.Generate], str]) -> None:
        super().__init__(wake)
        self._says = says

    def send(self, command: co.Command) -> None:
        super().send(command)
        match command:
            case co.Count():
                self.say(ev.Counted(command.id, sum(len(one.content) for one in command.messages), 4096))
            case co.Generate():
                text, settings = self._says(command), command.own or {}
                stops = settings.get("stop", [])
                found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
                for word in re.findall(r"\S+\s*|\s+", text[: min(found)[0]] if found else text):
                    self.write(word)
                stats = ev.Stats(2, 3, 4, 1, 9.0, 1.5, 0.25, 0.1, 0.1, 0.1, 0.1, prompt_tokens=3, reused_tokens=1)
                stop = "stop" if found else "length" if settings.get("max_tokens") == 1 else "end"
                self.say(ev.Finished(command.id, stop, "", stats, 1.0, min(found)[1] if found else None))


class ShiftedLoop(asyncio.SelectorEventLoop):
    """Its clock is ahead by as much as a test says: what waits for a time then is due with the next event."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


class AnsweringServer:
    """The server in a thread of this process, over an `AnsweringEngine`: for clients that need replies of a kind."""

    def __init__(self, says: Callable[[co.Generate], str]) -> None:
        self.says = says
        self.asked: list[co.Generate] = []
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.loop, self._stopped = ShiftedLoop(), asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self.loop.run_until_complete, args=[self._serve()], daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    async def _serve(self) -> None:
        engine = LoadedEngine(lambda wake: AnsweringEngine(wake, self._say), {"pair": "test"})
        with socket.create_server(("127.0.0.1", self.port)) as door:
            access = Access("127.0.0.1", self.port, True, KEY)
            await serve_requests(engine, door, access, 8, lambda _: self._ready.set(), stopped=self._stopped)

    def _say(self, command: co.Generate) -> str:
        self.asked.append(command)
        return self.says(command)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(PATIENCE_S)
        self.loop.close()


class Server:
    """`specchat serve` as a process."""

    def __init__(self, *words: str, home: Path) -> None:
        self.home = home
        environment = {**os.environ, "SPECCHAT_SERVE_KEY": KEY, "SPECCHAT_HOME": str(home)}
        command = [sys.executable, "-m", "specchat", "serve", "--port", str(free_port()), *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        assert "http://" in told, self.process.communicate(timeout=PATIENCE_S)
        self.address = told.split(" at ")[1].split()[0]
        self.port = int(self.address.split(":")[2].split("/")[0])
        self.client = self.make_client()

    def make_client(self, **more: Any) -> OpenAI:
        return OpenAI(base_url=self.address, api_key=KEY, **{"max_retries": 0, "timeout": PATIENCE_S, **more})

    def send(self, data: bytes, patience_s: float = 20.0) -> tuple[int, dict[str, Any] | None]:
        """Raw bytes, and what comes back: the status (0: nothing) and the JSON of the body."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=patience_s) as line:
            line.sendall(data)
            received = b""
            while part := _received(line):
                received += part
        head, _, body = received.partition(b"\r\n\r\n")
        if not head:
            return 0, None
        return int(head.split()[1]), json.loads(body) if body.startswith(b"{") else None

    def post(
        self, body: bytes, path: str = "/v1/chat/completions", **headers: str
    ) -> tuple[int, dict[str, Any] | None]:
        return self.send(raw_post(self.port, body, path, **headers))

    def engine_pid(self) -> int:
        """The process that owns the model: the server's only child."""
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        (pid,) = listed.stdout.split()
        return int(pid)

    def close(self, how: int = signal.SIGTERM) -> int:
        """End it; its exit code. What it wrote to standard error is `said` from then on."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.said = self.process.communicate(timeout=PATIENCE_S)[1]
        return self.process.returncode


def raw_post(port: int, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> bytes:
    """A request as bytes; headers given as `content_length` replace the usual ones."""
    told = {
        "host": f"127.0.0.1:{port}", "authorization": f"Bearer {KEY}", "content-type": "application/json",
        "content-length": str(len(body)), "connection": "close",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }  # fmt: skip
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items() if value), "", ""]
    return "\r\n".join(lines).encode() + body


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except ConnectionError:
        return b""
