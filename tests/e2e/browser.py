"""A headless Chromium, driven over its debugging protocol: what it loads, what it paints, what is typed into it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyte

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync", "--disable-component-update",
    "--disable-background-networking", "--no-first-run", "--no-proxy-server", "--remote-debugging-port=0",
]  # fmt: skip


class Page:
    """One page; the terminal on it is read from what the app sent to it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._screen = pyte.Screen(200, 100)
        self._stream = pyte.ByteStream(self._screen)
        self.requested: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something."""
        id = next(self._ids)
        await self._socket.send_json({"id": id, "method": method, "params": parameters})
        while id not in self._answers:
            self._take(json.loads((await self._socket.receive(timeout=60)).data))
        answer = self._answers.pop(id)
        assert "error" not in answer, answer
        return answer["result"]

    async def open(self, address: str) -> None:
        await self.call("Network.enable")
        await self.call("Page.enable")
        await self.call("Page.navigate", url=address)

    async def type(self, text: str) -> None:
        """Write into the terminal."""
        await self.call("Input.insertText", text=text)

    async def press_enter(self) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13,
                            text="\r" if kind == "keyDown" else "")  # fmt: skip

    async def script(self, source: str) -> Any:
        """A value the page knows."""
        return (await self.call("Runtime.evaluate", expression=source, awaitPromise=True))["result"].get("value")

    async def until(self, seen: str, patience_s: float = 120.0) -> str:
        """Wait until the terminal shows something."""
        end = time.monotonic() + patience_s
        while seen not in (text := "\n".join(line.rstrip() for line in self._screen.display)):
            assert time.monotonic() < end, f"waited for {seen!r} and saw:\n{text}"
            try:
                self._take(json.loads((await self._socket.receive(timeout=0.2)).data))
            except TimeoutError:
                continue
        return text

    async def picture(self) -> bytes:
        """What is painted, as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif message["method"] == "Network.requestWillBeSent":
            self.requested.append(message["params"]["request"]["url"])
        elif message["method"] == "Network.webSocketFrameReceived" and message["params"]["response"]["opcode"] == 2:
            self._stream.feed(base64.b64decode(message["params"]["response"]["payloadData"]))


@asynccontextmanager
async def chromium(profile: Path, size: tuple[int, int] = (1200, 800)) -> AsyncIterator[Page]:
    """A browser with one empty page."""
    flags = [*_FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
    process = subprocess.Popen([CHROMIUM, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = await _port(profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                page = next(target for target in await answer.json() if target["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _port(file: Path) -> int:
    for _ in range(600):
        if file.exists() and (words := file.read_text().split()):
            return int(words[0])
        await asyncio.sleep(0.1)
    raise AssertionError("the browser did not start")
