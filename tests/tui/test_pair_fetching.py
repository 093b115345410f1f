"""Pairs that are fetched while the chat goes on: loaded afterwards, called off, refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from driving import PAIRS, Driver, driving
from fake import ready, rounds_of, started, stats_of
from test_pairs import until

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Load

PULL = """
import sys, time
from pathlib import Path
def say(done): print('{"type":"loading","stage":"fetch","item":"m.gguf","done":%d,"total":100}' % done, flush=True)
print("chatter of a library")
say(40)
while not Path(sys.argv[1]).exists(): time.sleep(0.02)
say(100)
if Path(sys.argv[1]).read_text():
    print("specchat: the model hub cannot be reached", file=sys.stderr)
    sys.exit(1)
"""


def pulls(d: Driver, gate: Path) -> list[tuple[str, ...]]:
    """Let pulls be a script that stops at 40 % until `gate` is there; what it was asked to do."""
    asked: list[tuple[str, ...]] = []

    def command(*words: str) -> list[str]:
        asked.append(words)
        return [sys.executable, "-c", PULL, str(gate)]

    d.app.control.pairs.command = command
    return asked


async def test_a_pair_that_is_not_here_is_fetched_while_the_chat_goes_on(tmp_path):
    async with driving(engine_here=True) as d:
        asked = pulls(d, tmp_path / "gate")
        await d.pilot.press("f4", "down", "enter")
        await until(d, "40 %")
        assert asked == [("models", "pull", "smol-1.7b", "--output", "jsonl")]
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert "⇣ smol-1.7b 40 %" in d.drawn(d.app.views.status)
        await d.say("hi")
        await d.reply("fine")
        (tmp_path / "gate").touch()
        await until(d, "loading smol-1.7b")
        assert d.link.last(Load).settings["pair"] == "smol-1.7b"


async def test_what_was_fetched_is_loaded_when_the_reply_that_is_being_written_ends(tmp_path):
    async with driving(engine_here=True) as d:
        pulls(d, tmp_path / "gate")
        await d.say("/pair smol-1.7b")
        await until(d, "40 %")
        await d.say("hi")
        rounds = rounds_of(id=1)
        await d.hear(started(d.link.last(Generate).messages), *rounds[:5])
        (tmp_path / "gate").touch()
        await until(d, "smol-1.7b is here; it is loaded when this is over")
        await d.pilot.pause(0.3)
        assert len([command for command in d.link.sent if isinstance(command, Load)]) == 1
        await d.hear(*rounds[5:], ev.Finished(1, "end", "", stats_of(rounds), 0.4))
        await until(d, "loading smol-1.7b")


async def test_what_was_fetched_is_not_loaded_where_another_pair_was_asked_for_meanwhile(tmp_path):
    async with driving(
        engine_here=True, pairs=[replace(pair, state="ready") if pair.name == "qwen" else pair for pair in PAIRS]
    ) as d:
        pulls(d, tmp_path / "gate")
        await d.say("/pair smol-1.7b")
        await until(d, "40 %")
        await d.say("/pair qwen")
        await d.hear(ready(pair="qwen"))
        (tmp_path / "gate").touch()
        await until(d, "smol-1.7b is here; F4 or /pair smol-1.7b loads it")
        assert d.link.last(Load).settings["pair"] == "qwen"


async def test_fetching_can_be_called_off_and_begun_again(tmp_path):
    async with driving(engine_here=True) as d:
        asked = pulls(d, tmp_path / "gate")
        await d.pilot.press("f4", "down", "enter")
        await until(d, "40 %")
        await d.pilot.press("enter")
        assert "x stops that" in d.screen()
        await d.pilot.press("x")
        await until(d, "3.4 GB to fetch")
        assert not d.app.control.pairs.fetching
        await d.pilot.press("enter")
        await until(d, "40 %")
        assert len(asked) == 2
        await d.pilot.press("x")
        await until(d, "Enter fetches")


async def test_why_fetching_failed_is_said(tmp_path):
    async with driving(engine_here=True) as d:
        pulls(d, tmp_path / "gate")
        (tmp_path / "gate").write_text("fail")
        await d.say("/pair smol-1.7b")
        await until(d, "smol-1.7b was not fetched: the model hub cannot be reached")
        await d.pilot.press("f4", "down")
        await until(d, "✕ smol-1.7b  not fetched")


async def test_leaving_stops_what_is_being_fetched(tmp_path):
    async with driving(engine_here=True) as d:
        pulls(d, tmp_path / "gate")
        await d.say("/pair smol-1.7b")
        await until(d, "⇣ smol-1.7b 40 %")
        process = d.app.control.pairs._processes["smol-1.7b"]._process
    assert process.returncode is not None


async def test_without_a_pair_in_use_the_engine_fetches_at_once(tmp_path):
    async with driving(loaded=False, engine_here=True) as d:
        await d.hear(ev.Failed("WeightsError", "no network", during="load"))
        await d.pilot.press("f4", "down", "enter")
        await d.pilot.pause()
        assert d.link.last(Load).settings["pair"] == "smol-1.7b"
