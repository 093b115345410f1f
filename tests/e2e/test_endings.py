"""An app whose terminal or page is gone ends, whatever it is doing; one that is put to sleep comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pexpect
import pyte
import pytest

from tests.e2e.terminal import Terminal
from tests.e2e.test_terminal import alive, children_of
from tests.e2e.test_terminal_behaviour import LEFT_CLEAN, SCRIPTED, Listening, ready
from tests.e2e.test_web import Served, descendants

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")]

PATIENCE_S = 10.0
"""The app allows itself two seconds; the rest is for a busy machine."""


def all_gone(pids: list[int]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


def hang_up(terminal: Terminal) -> list[int]:
    """Close our side of the terminal, without a signal; the processes that should end."""
    family = [terminal.process.pid, *descendants(terminal.process.pid)]
    terminal.process.ptyproc.fileobj.close()
    terminal.process.closed = terminal.process.ptyproc.closed = True
    return family


def ends(terminal: Terminal, family: list[int]) -> bool:
    """The app and its engine are gone."""
    end = time.monotonic() + PATIENCE_S
    while terminal.process.isalive() and time.monotonic() < end:
        time.sleep(0.05)
    return not terminal.process.isalive() and all_gone(family[1:])


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.6, 1.0, 1.5])
def test_a_terminal_closed_while_the_app_starts_leaves_nothing_behind(terminals, after_s: float) -> None:
    terminals.append(Terminal(SCRIPTED))
    time.sleep(after_s)
    assert ends(terminals[0], hang_up(terminals[0]))


@pytest.mark.parametrize("keys", ["hello\r", "\x1bOS", "\x0f", "/race hello\r", "x" * 5000])
def test_a_terminal_closed_at_work_or_in_a_dialog_leaves_nothing_behind(terminals, keys: str) -> None:
    terminals.append(Terminal([*SCRIPTED, "--max-tokens", "100000"]))
    terminals[0].until(ready)
    terminals[0].type(keys)
    time.sleep(0.5)
    family = hang_up(terminals[0])
    assert len(family) >= 2, "an app and its engine"
    assert ends(terminals[0], family)


def test_an_app_that_hears_nothing_ends_all_the_same(terminals, tmp_path: Path) -> None:
    mark = tmp_path / "stuck"
    stuck = f"async def submit(self, text):\n    open({str(mark)!r}, 'w').close()\n    while True: pass\n"
    code = f"import specchat.tui.control.prompt_controller as w\n{stuck}w.PromptController.submit = submit\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    terminals.append(Terminal(SCRIPTED, PYTHONPATH=os.pathsep.join([str(tmp_path), os.getcwd()])))
    terminals[0].until(ready)
    terminals[0].type("hello\r")
    terminals[0].until(lambda _: mark.exists())
    os.kill(terminals[0].process.pid, signal.SIGTERM)
    assert terminals[0].gone(PATIENCE_S) == 128 + signal.SIGTERM


def test_sigquit_leaves_the_terminal_in_order() -> None:
    chat = Listening(SCRIPTED)
    try:
        chat.until(ready)
        os.kill(chat.process.pid, signal.SIGQUIT)
        assert chat.gone() == 128 + signal.SIGQUIT
        assert all(sequence in chat.heard for sequence in LEFT_CLEAN)
    finally:
        chat.close()


def test_ctrl_z_goes_to_the_shell_and_fg_comes_back_to_the_same_screen() -> None:
    screen = pyte.Screen(100, 30)
    stream = pyte.ByteStream(screen)
    command = " ".join([sys.executable, "-m", "specchat", *SCRIPTED, "--max-tokens", "40"])
    shell = pexpect.spawn(
        "bash", ["--norc", "--noprofile", "-i"], dimensions=(30, 100), timeout=60,
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PS1": "SHELL> "},
    )  # fmt: skip

    def until(seen: str) -> str:
        end = time.monotonic() + 60
        while not re.search(seen, text := "\n".join(screen.display)):
            assert time.monotonic() < end, f"waited for {seen!r} and saw:\n{text}"
            with contextlib.suppress(pexpect.TIMEOUT):
                stream.feed(shell.read_nonblocking(65536, timeout=0.1))
        return text

    try:
        until("SHELL>")
        shell.send(command + "\r")
        until("● scripted")
        shell.send("hello" + "\r")
        until(r"\b40\stok\b")
        shell.send("a draft")
        until("│ a draft")
        shell.send("\x1a")
        until("Stopped")
        shell.send("echo still $((40 + 2)) here\r")
        until("still 42 here")
        screen.reset()
        shell.send("fg\r")
        back = until("│ a draft")
        assert "hello" in back
        shell.send(" goes on")
        until("│ a draft goes on")
        shell.send("\x1f\r")
        shell.send("\x03\x03")
        until("SHELL>")
    finally:
        shell.close(force=True)


async def connected(served: Served, session: aiohttp.ClientSession, size: str) -> aiohttp.ClientWebSocketResponse:
    """A page as the server sees it."""
    port, key = urlsplit(served.site).port, served.address.split("key=")[1]
    headers = {"Cookie": f"specchat-key-{port}={key}"}
    return await session.ws_connect(f"{served.site}ws?{size}", headers=headers, max_msg_size=0)


@pytest.mark.parametrize("after_s", [0.0, 0.4, 0.7, 1.0, 1.3, 2.0])
async def test_a_page_closed_while_its_app_starts_leaves_nothing_behind(after_s: float) -> None:
    served = Served()
    try:
        async with aiohttp.ClientSession() as session:
            socket = await connected(served, session, "width=80&height=24")
            await asyncio.sleep(after_s)
            family = descendants(served.process.pid)
            await socket.close()
        assert await asyncio.to_thread(all_gone, family)
        assert await asyncio.to_thread(all_gone, children_of(served.process.pid))
    finally:
        served.close()


@pytest.mark.parametrize("size", ["width=999999999&height=24", "width=80&height=999999999", "width=-5&height=0"])
async def test_a_window_of_any_size_costs_no_more_than_a_large_one(size: str) -> None:
    served = Served()
    try:
        async with aiohttp.ClientSession() as session:
            socket = await connected(served, session, size)
            seen = b""
            while b"\x1b[?2004h" not in seen:  # the app has taken its window
                seen += (await asyncio.wait_for(socket.receive(), 60)).data
            await socket.send_str('["resize", {"width": 999999999, "height": 999999999}]')
            await asyncio.sleep(4.0)
            app = max(descendants(served.process.pid), key=resident_bytes)
            assert resident_bytes(app) < 1.5e9
            await socket.close()
    finally:
        served.close()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
