"""An app whose terminal or page is gone ends, whatever it is doing; one that is put to sleep comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pexpect
import pyte
import pytest

from specchat.tui.system.terminal import LARGEST_LINES
from tests.e2e.terminal import Terminal
from tests.e2e.test_terminal import alive, app_in
from tests.e2e.test_terminal_behaviour import LEFT_CLEAN, SCRIPTED, Listening, ready
from tests.e2e.test_web import Served, descendants
from tests.preloading import with_code_before

needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")
pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("preloaded"), needs_proc]

PATIENCE_S = 60.0
"""The app allows itself two seconds; the rest is for a busy machine."""


def all_gone(pids: Collection[int]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


def has_engine(pid: int) -> bool:
    """Whether an engine runs below a process."""
    return any(is_engine(below) for below in descendants(pid))


def is_engine(pid: int) -> bool:
    try:
        return b"engine" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False


def hang_up(terminal: Terminal) -> list[int]:
    """Close our side of the terminal, without a signal; the processes that should end."""
    app = app_in(terminal)
    family = [app, *descendants(app)]
    terminal.process.ptyproc.fileobj.close()
    terminal.process.closed = terminal.process.ptyproc.closed = True
    return family


def ends(terminal: Terminal, family: list[int]) -> bool:
    """The app and its engine are gone."""
    end = time.monotonic() + PATIENCE_S
    while terminal.process.isalive() and time.monotonic() < end:
        time.sleep(0.05)
    return not terminal.process.isalive() and all_gone(family[1:])


@pytest.mark.parametrize(("engine", "after_s"), [(False, 0.0), (False, 0.3), (False, 0.6), (True, 0.0), (True, 0.5)])
def test_a_terminal_closed_while_the_app_starts_leaves_nothing_behind(terminals, engine: bool, after_s: float) -> None:
    terminals.append(Terminal(SCRIPTED))
    if engine:
        terminals[0].until(lambda _: has_engine(terminals[0].process.pid), every_s=0.01)
    time.sleep(after_s)
    family = hang_up(terminals[0])
    assert len(family) >= 2 or not engine
    assert ends(terminals[0], family)


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ("hello\r", "╭─ kept"),
        ("\x1bOS", "╭─ pairs"),
        ("\x0f", "╭─ chats"),
        ("/race hello\r", "╭─ speculation"),
        ("x" * 5000, "xxxxx"),
    ],
    ids=["reply", "pairs", "chats", "race", "typing"],
)
def test_a_terminal_closed_at_work_or_in_a_dialog_leaves_nothing_behind(
    preloaded_app: None, terminals, keys: str, shown: str
) -> None:
    terminals.append(Terminal([*SCRIPTED, "--max-tokens", "100000"]))
    assert shown not in terminals[0].until(ready)
    terminals[0].type(keys)
    terminals[0].until(shown)
    family = hang_up(terminals[0])
    assert any(is_engine(pid) for pid in family)
    assert ends(terminals[0], family)


def test_an_app_that_hears_nothing_ends_all_the_same(preloaded_app: None, terminals, tmp_path: Path) -> None:
    mark = tmp_path / "stuck"
    code = f"""
import time
import specchat.tui.commands.prompt_input as w
async def submit(self, text):
    open({str(mark)!r}, "w").close()
    while True:
        time.sleep(1)
w.PromptInput.submit = submit
"""
    terminals.append(Terminal(SCRIPTED, PYTHONPATH=with_code_before(tmp_path, {"specchat": code})))
    terminals[0].until(ready)
    terminals[0].type("hello\r")
    terminals[0].until(lambda _: mark.exists())
    os.kill(terminals[0].process.pid, signal.SIGTERM)
    assert terminals[0].gone(PATIENCE_S) == 128 + signal.SIGTERM


def test_sigquit_leaves_the_terminal_in_order(preloaded_app: None) -> None:
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


@pytest.fixture(scope="module")
def site(preloaded_module: None, homes: Iterator[Path]) -> Iterator[Served]:
    """A server with a home of its own; every page that is opened has an app and an engine of its own."""
    home = next(homes)
    home.mkdir(mode=0o700)
    served = Served(SPECCHAT_HOME=str(home))
    yield served
    served.close()


class Page:
    """A page as the server sees it: its socket, and what was written to it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self._written = b""

    async def until(self, done: Callable[[bytes], bool], within_s: float = 60.0) -> None:
        """Read until something holds of what was written."""
        async with asyncio.timeout(within_s):
            while not done(self._written):
                with contextlib.suppress(TimeoutError):
                    self._written += (await self.socket.receive(timeout=0.02)).data


def takes_window(written: bytes) -> bool:
    return b"\x1b[?2004h" in written


@contextlib.asynccontextmanager
async def opened(site: Served, size: str) -> AsyncIterator[Page]:
    """A page of a size, to be closed by whoever opens it."""
    port, key = urlsplit(site.site).port, site.address.split("key=")[1]
    headers = {"Cookie": f"specchat-key-{port}={key}"}
    async with aiohttp.ClientSession() as session:
        yield Page(await session.ws_connect(f"{site.site}ws?{size}", headers=headers, max_msg_size=0))


async def gone_with_page(site: Served, page: Page) -> set[int]:
    """Close a page; the processes that it had, all of which have ended."""
    pid = site.process.pid
    family = set(descendants(pid))
    await page.socket.close()  # answered only when the app has been started
    family |= set(descendants(pid))
    assert await asyncio.to_thread(all_gone, family)
    assert not any(alive(below) for below in descendants(pid))
    return family


REACHED: dict[str, Callable[[Served, bytes], bool]] = {
    "connected": lambda site, written: True,
    "window": lambda site, written: takes_window(written),
    "engine": lambda site, written: has_engine(site.process.pid),
}
"""Stages of an app that starts: (its server, what it wrote to the page) → whether it is there."""


@pytest.mark.parametrize(
    ("stage", "after_s"),
    [("connected", 0.0), ("connected", 0.4), ("window", 0.0), ("engine", 0.0), ("engine", 0.4), ("engine", 1.1)],
)
async def test_a_page_closed_while_its_app_starts_leaves_nothing_behind(site, stage: str, after_s: float) -> None:
    async with opened(site, "width=80&height=24") as page:
        await page.until(lambda written: REACHED[stage](site, written))
        await asyncio.sleep(after_s)
        assert stage != "engine" or has_engine(site.process.pid)
        assert await gone_with_page(site, page), "an app was started"


async def test_a_window_of_any_size_costs_no_more_than_a_large_one(site) -> None:
    def drawn_in_bounds(written: bytes) -> bool:
        assert max(map(resident_bytes, descendants(site.process.pid))) < 1.5e9
        return b"\x1b[%d;" % LARGEST_LINES in written

    async with opened(site, "width=999999999&height=-5") as page:
        await page.until(takes_window)
        await page.until(lambda _: has_engine(site.process.pid))
        assert not drawn_in_bounds(b"")
        await page.socket.send_str('["resize", {"width": 999999999, "height": 999999999}]')
        await page.until(drawn_in_bounds)
        await gone_with_page(site, page)


def resident_bytes(pid: int) -> int:
    """Bytes of memory that a process has; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
