"""Pairs that are fetched while the chat goes on: loaded afterwards, called off, refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from driving import PAIRS, Driver, driving
from fake import LOSS, SETTINGS, ready, rounds_of, started, stats_of
from test_pairs import until

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Generate, Load

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

    d.app.context.pairs.command = command
    return asked


async def test_a_pair_that_is_not_here_is_fetched_while_the_chat_goes_on(tmp_path):
    async with driving(engine_here=True) as d:
        asked = pulls(d, tmp_path / "gate")
        await d.pilot.press("f4", "down", "enter")
        await until(d, "40 %")
        assert asked == [("models", "pull", "smol-1.7b", "--output", "jsonl")]
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert "⇣ smol-1.7b 40 %" in d.drawn(d.view.status)
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
        assert not d.app.context.pairs.fetching
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
        process = d.app.context.pairs.processes["smol-1.7b"]
        assert process.pid is not None
    assert process.pid is None


async def test_without_a_pair_in_use_the_engine_fetches_at_once(tmp_path):
    async with driving(loaded=False, engine_here=True) as d:
        await d.hear(ev.Failed("WeightsError", "no network", during="load"))
        await d.pilot.press("f4", "down", "enter")
        await d.pilot.pause()
        assert d.link.last(Load).settings["pair"] == "smol-1.7b"


AWAY = {"qwen-0.5b": 491_000_000}


def needs_draft(message="drafter 'fuse' needs the draft model qwen-0.5b, which is not here"):
    return ev.Failed("WeightsNotHere", message, during="change", missing=AWAY)


async def asked_for_fuse(d: Driver) -> None:
    """The user wants a drafter whose draft model is not here."""
    await d.say("/set drafter draft_model")
    assert d.link.last(Change).settings == {"drafter": "draft_model"}
    await d.hear(needs_draft())


async def test_a_draft_model_that_a_setting_needs_is_fetched_while_the_chat_goes_on_then_the_setting_changes(tmp_path):
    async with driving(engine_here=True) as d:
        asked = pulls(d, tmp_path / "gate")
        await asked_for_fuse(d)
        await until(d, "fetching qwen-0.5b (491 MB); prompt_lookup goes on meanwhile")
        await until(d, "⇣ smol 40 %")
        assert asked == [("models", "pull", "qwen-0.5b", "--output", "jsonl")]
        await d.say("hi")
        await d.reply("fine")
        sent = len(d.link.sent)
        (tmp_path / "gate").touch()
        await sent_after(d, sent)
        assert d.link.sent[sent:] == [Change({"drafter": "draft_model"})]
        await d.hear(changed(drafter="draft_model", draft="qwen-0.5b", memory=2_000_000_000))
        assert d.app.chat.engine.ready.draft == "qwen-0.5b"
        assert d.app.chat.engine.ready.memory_bytes == 2_000_000_000
        assert len(d.app.chat.turns) == 2, "the chat is as it was"
        await d.hear(changed(drafter="suffix", draft=""))
        assert d.app.chat.engine.ready.draft is None
        assert d.app.chat.engine.ready.memory_bytes == 2_000_000_000


async def test_a_setting_that_was_changed_meanwhile_stays_when_the_draft_model_is_here(tmp_path):
    async with driving(engine_here=True) as d:
        pulls(d, tmp_path / "gate")
        await asked_for_fuse(d)
        await until(d, "⇣ smol 40 %")
        await d.say("/set drafter suffix")
        await d.hear(changed(drafter="suffix"))
        sent = len(d.link.sent)
        (tmp_path / "gate").touch()
        await until(d, "qwen-0.5b is here")
        assert d.link.sent[sent:] == []


async def test_a_draft_model_that_cannot_be_fetched_leaves_settings_and_pair_as_they_are(tmp_path):
    async with driving(engine_here=True) as d:
        pulls(d, tmp_path / "gate")
        (tmp_path / "gate").write_text("fail")
        await asked_for_fuse(d)
        await until(d, "qwen-0.5b was not fetched, and drafter prompt_lookup stays: the")
        assert d.app.chat.engine.settings["drafter"] == "prompt_lookup"
        assert d.link.last(Change).settings == {"drafter": "draft_model"}
        await d.pilot.press("f4")
        await until(d, "● smol")


async def test_fetching_a_draft_model_can_be_called_off(tmp_path):
    async with driving(engine_here=True) as d:
        pulls(d, tmp_path / "gate")
        await asked_for_fuse(d)
        await until(d, "⇣ smol 40 %")
        await d.pilot.press("f4", "x")
        await until(d, "● smol")
        assert not d.app.context.pairs.fetching


async def test_an_engine_elsewhere_fetches_nothing_and_says_what_is_missing():
    async with driving(engine_here=False) as d:
        await asked_for_fuse(d)
        await until(d, "drafter 'fuse' needs the draft model qwen-0.5b, which is not here")
        assert not d.app.context.pairs.fetching


async def test_what_is_read_for_a_setting_is_said_until_the_setting_has_changed():
    async with driving() as d:
        await d.say("hi")
        await d.reply("fine")
        await d.say("/set drafter draft_model")
        await d.hear(ev.Loading("read", "qwen-0.5b", 100, 400, unit="ms"))
        assert "reading qwen-0.5b" in d.screen()
        assert d.app.chat.can_generate, "a question may be asked meanwhile"
        await d.hear(changed(drafter="draft_model", draft="qwen-0.5b", memory=7))
        assert "reading" not in d.screen()


def changed(drafter: str, draft: str | None = None, memory: int = 0) -> ev.Changed:
    return ev.Changed({**SETTINGS, "drafter": drafter}, LOSS, draft, memory)


async def sent_after(d: Driver, count: int) -> None:
    """Wait until the engine was sent something more."""
    for _ in range(3_000):
        if len(d.link.sent) > count:
            return
        await d.pilot.pause(0.02)
    raise AssertionError("nothing was sent")
