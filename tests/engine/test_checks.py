"""What contradicts itself is refused where it is decoded, so code that reads an event need not check again."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rows import each_row

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
from fake import hello, ready, rounds_of, started, stats_of

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.bounds import LONGEST_LINE_BYTES, MOST_NODES
from specchat.engine.protocol.codec import EventReader, decode_command, decode_event, encode, lines_of
from specchat.engine.protocol.commands import Generate, Message, Statistics
from specchat.engine.protocol.round_parts import Source
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.host import receive

ROUNDS = rounds_of("one two three four five six seven")
ROUND = max(ROUNDS, key=lambda round: len(round.verdict.path))
PATH = ROUND.verdict.path
SOURCE = {"token": 0, "part": "user", "number": 1, "before": "so"}
STARTED = started([Message("user", "hi")])
FINISHED = ev.Finished(1, "end", "", stats_of(ROUNDS), 9.0)

LEARNT = ev.Learnt("smol-hydra", True, chains=100, before=[40, 20], now=[50, 30])

JUDGED = ev.Learnt("smol-hydra", judged=[ev.ReplyJudged(100, 40, 50, 3, 20, 20)])


def changed(event: ev.Event, *where: Any, to: Any = None) -> bytes:
    """The event's line with one value replaced, or without it where `to` is `...`."""
    message = json.loads(encode(event))
    holder = message
    for key in where[:-1]:
        holder = holder[key]
    if to is ...:
        del holder[where[-1]]
    else:
        holder[where[-1]] = to
    return json.dumps(message).encode()


WIDTH = next(place for place, one in enumerate(hello().settings) if one.name == "width")


def lens(*layers: int, text: str = "x") -> dict[str, Any]:
    """What a model of four layers held likeliest, with a change at each of these."""
    return {"layers": 4, "tops": [{"layer": layer, "token": layer, "text": text} for layer in layers]}


@each_row(
    ("line", "why"),
    [
        (changed(LEARNT, "before", to=[9]), "two networks are compared at the same depths"),
        (changed(LEARNT, "now", 0, to=101), "more chains are right than there are"),
        (changed(ROUND, "tree", "parents", 2, to=2), "parents come before their children"),
        (changed(ROUND, "tree", "parents", 2, to=-1), "parents come before their children"),
        (changed(ROUND, "tree", "parents", 0, to=0), "the root has a parent"),
        (changed(ROUND, "tree", "parents", 2, to=...), "parents"),
        (changed(ROUND, "tree", "texts", to=[]), "has 0 texts"),
        (changed(ROUND, "tree", "target_logprob", to=[None]), "has 1 target_logprob"),
        (changed(ROUND, "tree", "target_logprob", 1, to=5.0), "target_logprob"),
        (changed(ROUND, "tree", "tokens", to=[]), "length >= 1"),
        (changed(ROUND, "tree", "tokens", to=[1] * (MOST_NODES + 1)), "length <="),
        (changed(ROUND, "tree", "tokens", 1, to=-3), "tokens"),
        (changed(ROUND, "tree", "tokens", 1, to=2**40), "tokens"),
        (changed(ROUND, "tree", "draws", 0, "child", to=0), "a draw names node 0"),
        (changed(ROUND, "tree", "draws", 0, "child", to=99), "a draw names node 99"),
        (changed(ROUND, "tree", "draws", 0, "draft_logprob", to="x"), "draft_logprob"),
        (changed(ROUND, "verdict", "path", to=[PATH[0], PATH[0]]), "the path goes from"),
        (changed(ROUND, "verdict", "path", to=[*PATH[1:]]), "the path goes from"),
        (changed(ROUND, "verdict", "path", 0, to=99), "the path goes from"),
        (changed(ROUND, "verdict", "reasons", 1, to=...), "reasons"),
        (changed(ROUND, "verdict", "bonus", to=2**40), "bonus"),
        (changed(ROUND, "verdict", "bonus", to=None), "pieces"),
        (changed(ROUND, "pieces", 0, to=...), "pieces"),
        (changed(ROUND, "pieces", 0, "origin", to="target"), "pieces"),
        (changed(ROUND, "pieces", -1, "source", to=SOURCE), "the target's own has a source"),
        (changed(ROUND, "pieces", 0, "source", to=SOURCE | {"token": ROUND.context_tokens}), "is a copy of token"),
        (changed(ROUND, "pieces", 0, "source", to=SOURCE | {"token": -1}), "token"),
        (changed(ROUND, "pieces", 0, "source", to=SOURCE | {"token": 10**20}), "token"),
        (changed(ROUND, "pieces", 0, "source", to=SOURCE | {"part": "robot"}), "part"),
        (changed(ROUND, "pieces", 0, "source", to=SOURCE | {"number": 0}), "number"),
        (changed(ROUND, "pieces", 0, "source", to=SOURCE | {"before": "a" * 65}), "before"),
        (changed(ROUND, "pieces", 0, "source", to=[]), "source"),
        (changed(ROUND, "pieces", 0, "lens", to=lens(3, 2, 4)), "not a way from the first of 4 on"),
        (changed(ROUND, "pieces", 0, "lens", to=lens(1, 3, 2)), "not a way"),
        (changed(ROUND, "pieces", 0, "lens", to=lens(1, 5)), "not a way"),
        (changed(ROUND, "pieces", 0, "lens", to=lens()), "length >= 1"),
        (changed(ROUND, "pieces", 0, "lens", to=lens(1) | {"layers": 10**6}), "layers"),
        (changed(ROUND, "pieces", 0, "lens", to=lens(1, text="x" * 65)), "text"),
        (changed(JUDGED, "judged", 0, "became_right", to=90), "more guesses changed than there are places"),
        (changed(JUDGED, "judged", to=[{"chains": 1, "before": 0, "now": 0}] * 65), "length <="),
        (changed(ROUND, "context_tokens", to=-1), "context_tokens"),
        (changed(ROUND, "timings", "draft_s", to=-1), "draft_s"),
        (changed(ROUND, "timings", "draft_s", to=1e300), "draft_s"),
        (changed(ROUND, "at_s", to=None), "at_s"),
        (changed(ROUND, "budget", "nodes", to=-1), "budget"),
        (changed(FINISHED, "stats", "rounds", to=-1), "rounds"),
        (changed(FINISHED, "stats", "accepted", to=10**6), "were accepted of"),
        (changed(FINISHED, "stats", "acceptance_rate", to=1.5), "acceptance rate"),
        (changed(FINISHED, "stats", "speedup", to=3.5), "speed-up 3.5 is not between 2.6 and 2.8"),
        (changed(FINISHED, "stats", "plain_rounds", to=-1), "plain_rounds"),
        (changed(FINISHED, "stats", "offered_by_depth", 0, to=-1), "offered_by_depth"),
        (changed(STARTED, "settings", "rule", to=...), "the settings lack 'rule'"),
        (changed(STARTED, "settings", "temperature", to="warm"), "temperature is not of kind float"),
        (changed(STARTED, "settings", "width", to=True), "width is not of kind int"),
        (changed(STARTED, "settings", "width", to=[1]), "width is a list"),
        (changed(STARTED, "settings", "stop", to=[1]), "stop"),
        (changed(STARTED, "settings", "method_options", to={"a.b": [[]]}), "method_options.a.b is a list"),
        (changed(STARTED, "settings", "max_tokens", to=10**25), "out of every range"),
        (changed(STARTED, "messages", 0, "role", to="robot"), "role"),
        (changed(ready(), "memory_bytes", to=-1), "memory_bytes"),
        (changed(hello(), "settings", 0, "kind", to="list"), "kind"),
        (changed(hello(), "settings", WIDTH, "default", to="wide"), "is not of kind int"),
        (changed(hello(), "settings", WIDTH, "minimum", to=1e6), "has no value between"),
        (encode(ev.Died(1, "")), "made on the near side"),
        (b'{"type":"quit"}' + b" " * LONGEST_LINE_BYTES, "longer than"),
        (b'{"type":"no\nsuch"}', "JSON"),
    ],
)  # fmt: skip
def test_an_event_that_contradicts_itself_is_refused_and_says_why(line: bytes, why: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=why) as error:
        decode_event(line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("event", [ROUND, STARTED, FINISHED, ready(), hello()])
def test_what_is_right_comes_back_as_it_was(event: ev.Event) -> None:
    assert decode_event(encode(event)) == event


def test_the_source_of_a_copied_token_comes_back_and_others_take_no_room() -> None:
    event = decode_event(changed(ROUND, "pieces", 0, "source", to=SOURCE))
    assert isinstance(event, ev.RoundDone)
    assert event.pieces[0].source == Source(0, "user", 1, "so")
    assert decode_event(encode(event)) == event
    assert encode(event).count(b"source") == 1


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([ROUNDS[0]], "reply 1 is not being written"),
        ([STARTED, ROUNDS[1]], "round 1 comes where 0 is due"),
        ([STARTED, ROUNDS[0], ROUNDS[0]], "round 0 comes where 1 is due"),
        ([STARTED, *ROUNDS, FINISHED, FINISHED], "reply 1 is not being written"),
        ([STARTED, ev.Prefilled(2, 1, 1, 0.0)], "reply 2 is not being written"),
        ([STARTED, ev.Prefilled(1, 1, 1, 5.0), ROUNDS[0]], "runs backwards"),
        ([hello(), ev.Header(1, "0", "x")], "a header may only be the first line"),
    ],
)
def test_events_come_in_an_order_that_can_be(events: list[ev.Event], why: str) -> None:
    reader = EventReader()
    *before, last = [encode(event) for event in events]
    for line in before:
        reader.read(line)
    with pytest.raises(msgspec.DecodeError, match=why):
        reader.read(last)


def alternate() -> list[ev.Event]:
    """Two replies, a round of each in turn."""
    second = [msgspec.structs.replace(event, id=2) for event in (STARTED, *ROUNDS, FINISHED)]
    return [event for pair in zip((STARTED, *ROUNDS, FINISHED), second, strict=True) for event in pair]


def test_two_replies_may_be_written_by_turns() -> None:
    reader = EventReader()
    for event in alternate():
        assert reader.read(encode(event)) == event


def test_where_a_ninth_reply_begins_the_oldest_is_over() -> None:
    reader = EventReader()
    for event in [*alternate()[:4], *(msgspec.structs.replace(STARTED, id=3 + more) for more in range(7))]:
        reader.read(encode(event))
    reader.read(encode(msgspec.structs.replace(ROUNDS[1], id=2)))
    with pytest.raises(msgspec.DecodeError, match="reply 1 is not being written"):
        reader.read(encode(ROUNDS[1]))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"type":"load","settings":{"pair":3}}',
        b'{"type":"load","settings":{"width":[[]]}}',
        b'{"type":"generate","id":-1,"messages":[]}',
        b'{"type":"generate","id":1,"messages":[{"role":"robot","content":""}]}',
        b'{"type":"generate","id":1,"messages":[],"seed":99999999999999999999}',
        b'{"type":"generate","id":1,"messages":[],"beside":{"id":1,"apart":{"controller":"off"}}}',
        b'{"type":"pace","id":1,"gap_s":1e300}',
        b'{"type":"pace","id":1,"rounds":-1}',
        b'{"type":"compare","id":1,"messages":[],"seed":1,"plain":[-1],"other":[]}',
        *(
            encode(Generate(1, [Message("user", "hi")], tools=tools))
            for tools in ("{", "5", '{"name": "f"}', "[1]", "[" * 5000)
        ),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_command(line)


def test_a_line_without_end_is_one_error_and_the_next_line_is_read() -> None:
    heard: list[ev.Event] = []
    commands = CommandQueue()
    stream = io.BytesIO(b"x" * (3 * LONGEST_LINE_BYTES) + b"\n" + encode(Statistics()))
    receive(stream, commands, heard.append)
    assert [getattr(event, "message", "") for event in heard] == [
        f"a line is not a command: the line is longer than {LONGEST_LINE_BYTES:,} bytes"
    ]
    assert commands.pending() == [Statistics()]


def test_lines_that_fit_come_whole() -> None:
    assert list(lines_of(io.BytesIO(b"a\nbc\n\nd"))) == [b"a\n", b"bc\n", b"\n", b"d"]


@pytest.mark.parametrize(
    ("line", "id", "during"),
    [
        (b'{"type":"generate","id":7,"messages":[{"role":"robot","content":""}]}', 7, "generate"),
        (b'{"type":"load","settings":{"pair":3}}', None, "load"),
        (b'{"type":"change","settings":{"width":[[]]}}', None, "change"),
        (b'{"type":"nothing","id":7}', None, "protocol"),
        (b'{"type":"generate","id":-7,"messages":[]}', None, "protocol"),
    ],
)
def test_a_refusal_names_the_command_so_that_no_client_waits_for_it(line: bytes, id: int | None, during: str) -> None:
    heard: list[ev.Event] = []
    receive(io.BytesIO(line), CommandQueue(), heard.append)
    assert [(event.id, event.during) for event in heard if isinstance(event, ev.Failed)] == [(id, during)]
