"""What the app does to a real terminal: an editor in between, bell, title, mouse, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.terminal import Terminal
from tests.preloading import with_code_before

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("preloaded_app")]

ENTER, CTRL_C, CTRL_G = "\r", "\x03", "\x07"
LOOKS_AWAY = "\x1b[O"
MOUSE_ON = b"\x1b[?1000h"
LEFT_CLEAN = (b"\x1b[?1049l", b"\x1b[?25h")  # the normal screen, a cursor
SCRIPTED = ["--pair", "scripted", "--drafter", "draft_model", "--controller", "fixed"]
SHORT = ("--max-tokens", "40")
"""For a test that waits for the end of a reply in a wide terminal and looks at nothing before it."""


class Listening(Terminal):
    """Keeps what the program sent, for what a screen does not show."""

    def __init__(self, arguments: list[str], **environment: str) -> None:
        self.heard = b""
        super().__init__(arguments, **environment)
        feed = self._stream.feed

        def listen(data: bytes) -> None:
            self.heard += data
            feed(data)

        self._stream.feed = listen  # type: ignore[method-assign]

    def hears(self, wanted: Callable[[bytes], bool], patience_s: float = 60.0) -> bytes:
        end = time.monotonic() + patience_s
        while not wanted(self.heard):
            assert time.monotonic() < end, f"never heard it; the end was {self.heard[-400:]!r}"
            _ = self.text
            time.sleep(0.05)
        return self.heard


@pytest.fixture
def start() -> Iterator[Callable[..., Listening]]:
    started: list[Listening] = []

    def go(*arguments: str, **environment: str) -> Listening:
        started.append(Listening([*SCRIPTED, *arguments], **environment))
        return started[-1]

    yield go
    for terminal in started:
        terminal.close()


def ready(text: str) -> bool:
    return "● scripted" in text


def finished(text: str) -> bool:
    return re.search(r"\d+\stok\s·\s\d", text) is not None


def test_the_prompt_is_edited_in_an_editor_and_the_app_comes_back(start, tmp_path: Path) -> None:
    script = tmp_path / "editor.py"
    script.write_text(
        "import sys, pathlib\nfile = pathlib.Path(sys.argv[1])\nprint('THE EDITOR')\n"
        "input()\nfile.write_text(file.read_text() + ' from the editor')\n"
    )
    chat = start(*SHORT, VISUAL=f"{sys.executable} {script}")
    chat.until(ready)
    chat.type("words")
    chat.until("words")
    chat.type(CTRL_G)
    chat.until("THE EDITOR")
    chat.type(ENTER)
    chat.until("words from the editor")
    chat.type(ENTER)
    chat.until(finished)
    chat.type(CTRL_C + CTRL_C)
    assert chat.gone() == 0


def test_the_title_is_set_and_given_back(start) -> None:
    chat = start(*SHORT)
    chat.until(ready)
    chat.type("hello" + ENTER)
    chat.hears(lambda heard: "✎ specchat · hello".encode() in heard)
    chat.until(finished)
    chat.type(CTRL_C + CTRL_C)
    assert chat.gone() == 0
    assert chat.heard.count(b"\x1b[22;2t") == 1
    assert b"\x1b[23;2t" in chat.heard[chat.heard.rindex(b"\x1b]2;") :]


def test_the_bell_rings_when_a_reply_ends_while_one_looks_away(start, tmp_path: Path) -> None:
    change = "import specchat.tui.services.terminal_app as s\ns.SHORT_S = 0.0\n"
    chat = start(PYTHONPATH=with_code_before(tmp_path, {"specchat": change}))
    chat.until(ready)
    chat.type("hello" + ENTER)
    chat.until(finished)
    assert rings(chat) == 0
    chat.type("more" + ENTER)
    chat.until("▌ more")
    chat.type(LOOKS_AWAY)
    chat.hears(lambda _: rings(chat) == 1)


def rings(chat: Listening) -> int:
    return re.sub(rb"\x1b\][^\x07]*\x07", b"", chat.heard).count(b"\x07")


@pytest.mark.parametrize("flag", [True, False])
def test_the_mouse_is_left_to_the_terminal_on_request(start, flag: bool) -> None:
    chat = start(*(["--no-mouse"] if flag else []))
    chat.until(ready)
    assert (MOUSE_ON in chat.heard) != flag
    chat.type(CTRL_C + CTRL_C)
    assert chat.gone() == 0


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_in_order(start, number: signal.Signals) -> None:
    chat = start()
    chat.until(ready)
    os.kill(chat.process.pid, number)
    assert chat.gone() == 128 + number
    for sequence in LEFT_CLEAN:
        assert sequence in chat.heard


def test_a_crash_leaves_the_terminal_in_order_and_says_what_happened(start, tmp_path: Path) -> None:
    crash = "async def submit(self, text): raise RuntimeError('crashed on purpose')\n"
    change = f"import specchat.tui.commands.prompt_input as w\n{crash}w.PromptInput.submit = submit\n"
    chat = start(PYTHONPATH=with_code_before(tmp_path, {"specchat": change}))
    chat.until(ready)
    chat.type("hello" + ENTER)
    assert chat.gone() != 0
    for sequence in LEFT_CLEAN:
        assert sequence in chat.heard
    assert b"crashed on purpose" in chat.heard[chat.heard.rindex(b"\x1b[?1049l") :]


def test_the_conversation_is_printed_on_leaving(start) -> None:
    chat = start("--print-transcript", "--max-tokens", "20")
    chat.until(ready)
    chat.type("a question" + ENTER)
    chat.until(lambda text: re.search(r"\b20\stok\b", text) is not None)  # the line may break anywhere
    chat.type(CTRL_C + CTRL_C)
    assert chat.gone() == 0
    assert "› a question".encode() in chat.heard[chat.heard.rindex(b"\x1b[?1049l") :]


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_sent_is_remembered_privately_or_not_at_all(start, tmp_path: Path, kept: bool) -> None:
    home = tmp_path / "home"
    (home / "config").mkdir(parents=True)
    (home / "config" / "config.toml").write_text(f"[app]\nhistory = {str(kept).lower()}\n")
    chat = start(*SHORT, SPECCHAT_HOME=str(home))
    chat.until(ready)
    chat.type("remember me" + ENTER)
    chat.until(finished)
    chat.type(CTRL_C + CTRL_C)
    assert chat.gone() == 0
    file = home / "state" / "prompts.jsonl"
    assert file.exists() == kept
    if kept:
        assert file.stat().st_mode & 0o777 == 0o600
        again = start(SPECCHAT_HOME=str(home))
        again.until(ready)
        again.type("\x1b[A")
        again.until("│ remember me")
