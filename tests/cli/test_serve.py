"""`specchat serve` as a user meets it before anything is served, and what `--watch` draws."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from specchat.cli.serving import TreeWatch
from specchat.engine.client.replay import Recording
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Message

pytestmark = pytest.mark.usefixtures("preloaded")

DEMO = Path(__file__).parents[2] / "assets/demo.jsonl"


def serve(*words: str, hidden: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    program = "sys.argv[:1] = ['specchat', 'serve']; from specchat.cli import main; main()"
    start = f"import sys; {hidden or 0}; {program}"
    return subprocess.run(
        [sys.executable, "-c", start, *words], capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL, env={**os.environ, **environment},
    )  # fmt: skip


def refusal(*words: str, **more: str) -> str:
    ended = serve(*words, **more)
    assert ended.returncode == 2, ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    return ended.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7"])
def test_other_machines_are_kept_out_unless_asked_for_and_told_why(host: str) -> None:
    told = refusal("--host", host)
    assert "this machine's models" in told
    assert "--allow-remote" in told


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_the_extra_it_says_how_to_get_it(package: str) -> None:
    assert "pip install -e '.[serve]' in the folder of specchat's repository" in refusal(
        hidden=f"sys.modules['{package}'] = None"
    )


@pytest.mark.parametrize("key", ["", "short", "with spaces in it", "schlüssel"])
def test_a_key_that_protects_nothing_is_refused(key: str) -> None:
    assert "SPECCHAT_SERVE_KEY" in refusal(SPECCHAT_SERVE_KEY=key)


def test_trees_are_not_drawn_into_a_file() -> None:
    assert "--watch draws on a terminal" in refusal("--watch")


def test_a_pair_that_does_not_exist_is_told_with_the_nearest() -> None:
    assert "scripted" in refusal("--pair", "scirpted", "--port", "18123")


def watched(events: list[ev.Event], width: int = 80, height: int = 24) -> str:
    screen = io.StringIO()
    trees = TreeWatch(Console(file=screen, force_terminal=True, width=width, height=height, highlight=False))
    for event in events:
        trees.hear(event)
    trees.close()
    return screen.getvalue()


def test_the_question_the_trees_and_the_figures_are_drawn() -> None:
    reply = [*Recording.read(DEMO).replies()[0]]
    drawn = watched(reply)
    rounds = [event for event in reply if isinstance(event, ev.RoundDone)]
    assert "› " + reply[0].messages[-1].content[:40] in drawn
    assert any(round.verdict.bonus_text.strip() in drawn for round in rounds[:1])
    assert "★" in drawn
    assert "drafted accepted" in drawn.splitlines()[-1]


@pytest.mark.parametrize("size", [(20, 5), (300, 80)])
def test_trees_are_drawn_in_a_window_of_any_size(size: tuple[int, int]) -> None:
    assert "★" in watched([*Recording.read(DEMO).replies()[0]], *size)


def test_what_a_client_sends_cannot_steer_the_terminal() -> None:
    start = Recording.read(DEMO).replies()[0][0]
    assert isinstance(start, ev.Started)
    hostile = ev.Started(**{
        **{name: getattr(start, name) for name in start.__struct_fields__},
        "messages": [Message("user", "a\x1b]0;owned\x07b\n\x9bc")],
    })  # fmt: skip
    drawn = watched([hostile])
    assert "\x1b]" not in drawn
    assert "\x9b" not in drawn
    assert "a␛]0;owned" in drawn


def test_an_engine_that_dies_ends_the_picture() -> None:
    reply = Recording.read(DEMO).replies()[0]
    assert "the engine died" in watched([*reply[:5], ev.Died(-9, "")]).splitlines()[-1]
