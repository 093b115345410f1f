"""Recordings are read strictly and played like an engine."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
from fake import hello, ready, rounds_of, started, stats_of

from specchat.engine.client.replay import Player, Recording, timeline
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import encode
from specchat.engine.protocol.commands import Cancel, Change, Generate, Load, Message, Quit
from specchat.errors import RecordingError

HEADER = ev.Header(ev.PROTOCOL, "0", "2026-01-01T00:00:00Z")
QUESTION = [Message("user", "hi")]


def reply(id: int, step_s: float = 0.01) -> list[ev.Event]:
    rounds = rounds_of("one two three four five six seven", id=id, step_s=step_s)
    last = ev.Finished(id, "end", "", stats_of(rounds), rounds[-1].at_s + step_s)
    return [started(QUESTION, id), ev.Prefilled(id, 5, 5, 0.0), *rounds, last]


def data(*events: ev.Event) -> bytes:
    return b"".join(encode(event) for event in events)


def recording(step_s: float = 0.01, replies: int = 1) -> Recording:
    events = [event for n in range(replies) for event in reply(n + 1, step_s)]
    return Recording.parse(data(HEADER, hello(), ready(), *events), "demo.jsonl")


def collect(player: Player, until: type, patience_s: float = 60.0) -> list[ev.Event]:
    heard: list[ev.Event] = []
    end = time.monotonic() + patience_s
    while time.monotonic() < end and not any(isinstance(e, until) for e in heard):
        heard += player.drain()
        time.sleep(0.002)
    return heard


def test_a_recording_is_a_header_and_events(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(data(HEADER, hello(), ready(), *reply(1)))
    read = Recording.read(path)
    assert read.header == HEADER
    assert not read.truncated
    assert list(read.replies()[0]) == reply(1)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is empty"),
        (data(hello()), "line 1: a recording begins with a header, this is a 'hello' event"),
        (data(ev.Header(99, "0", "x")), "line 1: the recording has version 99, this specchat reads version 1"),
        (data(HEADER) + b"{not json\n" + data(*reply(1)), "line 2: this is not an event"),
        (data(HEADER) + b"\n" + b'{"type":"round","id":1}\n', "line 3: this is not an event"),
        (data(HEADER, hello()), "holds no reply"),
    ],
)
def test_a_broken_recording_is_one_line_naming_file_and_line(content, line):
    with pytest.raises(RecordingError) as error:
        Recording.parse(content, "demo.jsonl")
    assert str(error.value).startswith("demo.jsonl")
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecordingError, match="nowhere\\.jsonl: the recording cannot be read"):
        Recording.read(tmp_path / "nowhere.jsonl")


def test_a_line_cut_off_at_the_end_is_forgiven():
    whole = data(HEADER, *reply(1))
    read = Recording.parse(whole[:-40], "x")
    assert read.truncated
    assert len(read.events) == len(reply(1)) - 1
    assert not Recording.parse(whole[:-1], "x").truncated


def test_the_timeline_waits_as_long_as_the_recorder_did():
    waits = [wait for wait, _ in timeline(recording(0.5, replies=2))]
    per_reply = len(reply(1))
    assert waits[:2] == [0.0, 0.0]
    assert waits[2:per_reply] == pytest.approx([0.5] * (per_reply - 2))
    assert waits[per_reply] > 0.5


def test_a_player_says_hello_answers_load_and_plays():
    woken = threading.Event()
    player = Player(recording(), woken.set)
    assert player.drain() == [hello()]
    time.sleep(0.05)
    assert player.drain() == []
    player.send(Load({}))
    heard = collect(player, ev.Finished)
    assert heard == [ready(), *reply(1)]
    assert woken.is_set()
    assert player.ended
    assert player.progress[0] == player.progress[1]
    player.close()


def test_speed_pause_and_steps():
    player = Player(recording(step_s=30.0))
    player.send(Load({}))
    player.pause()
    player.drain()
    player.step()
    player.step()
    assert [type(e) for e in player.drain() if isinstance(e, ev.RoundDone)] == [ev.RoundDone] * 2
    assert player.paused
    for _ in range(20):
        player.faster(2.0)
    assert player.speed == 16.0
    player.resume()
    time.sleep(0.05)
    assert player.drain() == []  # thirty recorded seconds still take two
    player.close()


def test_a_player_can_begin_again():
    player = Player(recording())
    player.send(Load({}))
    collect(player, ev.Finished)
    player.rewind()
    assert [e for e in collect(player, ev.Finished) if not isinstance(e, ev.Ready)] == reply(1)
    player.close()


def test_nothing_can_be_asked_of_a_recording():
    player = Player(recording())
    player.drain()
    player.send(Generate(3, QUESTION))
    player.send(Change({"width": 2}))
    assert [(e.during, e.id) for e in player.drain()] == [("generate", 3), ("change", None)]
    player.send(Cancel(1))
    assert player.paused
    player.send(Quit())


def test_without_a_recorded_ready_the_reply_tells_what_there_was():
    player = Player(Recording.parse(data(HEADER, *reply(1)), "x"))
    player.pause()
    player.send(Load({}))
    told = [e for e in player.drain() if isinstance(e, ev.Ready)]
    assert told[0].pair == "smol"
    player.close()


def test_a_refused_line_is_quoted_briefly(tmp_path):
    long = b'{"type":"failed","kind":"' + b"x" * 30_000 + b'","message":"m","' + b"y" * 30_000 + b'":[}'
    for line in (long, b'{"type":"' + b"z" * 30_000 + b'"}'):
        with pytest.raises(RecordingError) as caught:
            Recording.parse(data(HEADER, *reply(1)) + line + b"\n", "demo.jsonl")
        assert len(str(caught.value)) < 400
