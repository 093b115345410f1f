"""The app in a real browser, and a server that refuses everyone else."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("textual_serve", reason="the browser needs the extra `web`")

from tests.e2e.browser import CHROMIUM, chromium
from tests.e2e.test_terminal import alive, children_of

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("preloaded")]

PATIENCE_S = 60


class Served:
    """`specchat web`, and the address it printed."""

    def __init__(self, *words: str, **environment: str) -> None:
        command = [sys.executable, "-m", "specchat", "web", "--pair", "scripted", "--port", str(free_port()), *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        assert self.process.stdout is not None
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found, self.process.communicate(timeout=PATIENCE_S)
        self.address = found[0]
        self.site = self.address.split("?")[0]

    def get(self, address: str, **headers: str) -> tuple[int, str]:
        """Status and text, without following where it leads."""
        request = urllib.request.Request(address, headers=headers)
        try:
            with OPENER.open(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def close(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.communicate(timeout=PATIENCE_S)


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


OPENER = urllib.request.build_opener(Stay, urllib.request.ProxyHandler({}))


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


@pytest.fixture
def served(preloaded: None) -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here (Debian: apt install chromium)")
async def test_a_message_typed_in_a_browser_gets_a_reply_and_nothing_comes_from_elsewhere(served, tmp_path):
    async with chromium(tmp_path / "profile") as page:
        await page.open(served.address)
        await page.until("● scripted")
        await page.type("hello from a browser")
        await page.press_enter()
        shown = await page.until("tok/s")
        assert "hello from a browser" in shown
        assert {urlsplit(url).netloc for url in page.requested if not url.startswith("data:")} == {
            urlsplit(served.address).netloc
        }
        assert await page.script("location.href") == served.site, "the key does not stay in the address"
        assert await page.script("document.fonts.check('16px \"Roboto Mono\"')")
        picture = await page.picture()
        assert len(set(picture)) > 200
        keep = os.environ.get("SPECCHAT_PICTURES")
        if keep:
            (Path(keep) / "web.png").write_bytes(picture)


@pytest.mark.skipif(not CHROMIUM or not os.path.exists("/proc/self/task"), reason="needs Chromium and /proc")
async def test_apps_and_engines_leave_even_with_a_server_that_is_killed(served, tmp_path):
    async with chromium(tmp_path / "profile") as page:
        await page.open(served.address)
        await page.until("● scripted")
        family = descendants(served.process.pid)
        assert len(family) >= 2, "an app and its engine"
        served.close(signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while any(alive(pid) for pid in family):
            assert time.monotonic() < end, [pid for pid in family if alive(pid)]
            await asyncio.sleep(0.1)


def descendants(pid: int) -> list[int]:
    children = children_of(pid)
    return children + [below for child in children for below in descendants(child)]


def test_only_the_address_with_its_key_from_a_page_of_its_own_is_let_in(served):
    key = served.address.split("key=")[1]
    cookie = {"Cookie": f"specchat-key-{urlsplit(served.site).port}={key}"}
    assert served.get(served.address)[0] == 303
    assert served.get(served.site, **cookie)[0] == 200
    assert served.get(served.site)[0] == 403
    assert served.get(served.site + "?key=" + "x" * len(key))[0] == 403
    assert served.get(served.site, Cookie=cookie["Cookie"] + "x")[0] == 403
    assert served.get(served.site + "static/js/textual.js")[0] == 403
    assert served.get(served.address, Host="evil.example")[0] == 403
    assert served.get(served.site + "ws?width=80&height=24", **cookie, Origin="http://evil.example")[0] == 403


def test_a_taken_port_is_said_and_the_next_one_used():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        taken = door.getsockname()[1]
        server = Served("--port", str(taken))
        try:
            port = urlsplit(server.site).port
            assert port is not None
            assert port > taken
            assert server.process.stderr is not None
            assert server.process.stderr.readline() == f"port {taken} is taken; using {port}\n"
        finally:
            server.close()


def test_ctrl_c_ends_the_server_at_once_and_without_a_word(served):
    served.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, errors = served.process.communicate(timeout=PATIENCE_S)
    assert served.process.returncode == 0
    assert errors == ""
    assert time.monotonic() - began < PATIENCE_S
