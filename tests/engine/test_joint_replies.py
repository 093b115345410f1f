"""Replies that an engine writes together: each with settings and events of its own, and the reply that it is alone."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from contracts.test_target_at import InThread
from engine_driver import HELLO
from tiny_models import add_tiny_pair

from specchat.compiled.machine import process_bytes
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Change, Generate, Load, Message, ReplyConstraint
from specchat.engine.server import joint_replies, open_pair, target_host
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.open_pair import OpenPair
from specchat.engine.server.worker import Worker
from specchat.models.decoder.cached_model import read_together
from specchat.models.remote import link
from specchat.settings import MOST_TOGETHER

ASKED = {
    1: ({"temperature": 0.8}, "What are you?"),
    2: ({"temperature": 0.0, "max_tokens": 25}, "Tell me of trees."),
    3: ({"temperature": 1.2, "top_p": 0.9, "stop": ["e"]}, "What are you?"),
    4: (
        {"temperature": 0.6, "repetition_penalty": 1.2},
        "And of rivers, long ones, and their names, please, all of them.",
    ),
    5: ({"temperature": 0.8, "max_tokens": 12}, "Why?"),
}


def generate(id, text="What are you?", own=None, **more):
    return Generate(id, [Message("user", text)], seed=id, own=own or {}, **more)


class Engine:
    """A worker without a process: commands are put into its queue and answered until none is left."""

    def __init__(self, pair):
        self.pair = pair
        self.events, self.queue, self.hear = [], CommandQueue(), lambda event: None
        self.worker = Worker(self.queue, self._emit)
        self.worker.answer(Load({"pair": pair, "max_tokens": 40, "learn": False}))

    def _emit(self, event):
        self.events.append(event)
        self.hear(event)

    def answer(self, *commands):
        """The events of these commands, which arrive together, and of what arrives meanwhile."""
        self.events.clear()
        for command in commands:
            self.queue.receive(command)
        while command := self.worker._deferred.pop(0) if self.worker._deferred else self.queue.next(0):
            self.worker.answer(command)
        return list(self.events)

    def texts(self, *commands):
        """By id, the tokens of replies and why each ended."""
        events = self.answer(*commands)
        found = {}
        for one in events:
            if isinstance(one, ev.RoundDone):
                found.setdefault(one.id, []).extend(piece.token for piece in one.pieces)
        return {one.id: (found[one.id], one.stop) for one in events if isinstance(one, ev.Finished)}


@pytest.fixture(scope="module", params=["scripted", "tiny"])
def engine(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("SPECCHAT_HOME", str(home))
        if request.param == "tiny":
            add_tiny_pair(home)
        yield Engine(request.param)


def test_each_reply_is_the_one_that_it_is_alone(engine, monkeypatch):
    commands = [generate(id, text, own) for id, (own, text) in ASKED.items()]
    alone = {}
    for command in commands:
        alone |= engine.texts(command)
    sizes = []

    def counted(trees):
        for readings in read_together(trees):
            sizes.append(len(readings))
            yield readings

    monkeypatch.setattr("specchat.decoding.together.read_together", counted)
    assert engine.texts(*commands) == alone
    assert len({tuple(tokens) for tokens, _ in alone.values()}) >= 4
    assert max(sizes, default=0) == (0 if engine.pair == "scripted" else len(ASKED)), "one pass reads all that it can"


def test_events_of_replies_alternate_round_by_round_and_name_their_reply(engine):
    """Until the first ends, no reply is more than the slices of the prompts ahead of another, and once all are being
    written each gets a round in every pass."""
    ids = (3, 4, 6, 8)  # no reply of these seeds ends by itself
    events = engine.answer(*(generate(id, "What are you?", {"max_tokens": 90, "temperature": 0.7}) for id in ids))
    done, before = dict.fromkeys(ids, 0), {}
    for event in events:
        if isinstance(event, ev.Finished):
            break
        if isinstance(event, ev.RoundDone):
            done[event.id] += 1
            assert event.index == done[event.id] - 1
            if min(done.values()):
                assert max(done.values()) - min(done.values()) <= 8
                before = before or dict(done)
                since = [done[id] - before[id] for id in done]
                assert max(since) - min(since) <= 1
    assert min(since) >= 5
    started = {event.id: event.settings for event in events if isinstance(event, ev.Started)}
    assert {settings["temperature"] for settings in started.values()} == {0.7}
    assert engine.worker._pair.open.conversation.settings.max_tokens == 40


def test_one_is_cancelled_and_one_cannot_be_written_and_the_others_are_as_ever(engine):
    wanted = engine.texts(generate(2), generate(3))

    def cancel(event):
        if isinstance(event, ev.RoundDone) and (event.id, event.index) == (1, 2):
            engine.queue.receive(Cancel(1))

    engine.hear = cancel
    wrong = [generate(4, own={"temperature": -3.0}), generate(5, own={"drafter": "none"}), generate(6, own={"oven": 1})]
    found = engine.texts(generate(1), *wrong, generate(2), generate(3))
    engine.hear = lambda event: None
    assert found[1][1] == "cancelled"
    assert len([e for e in engine.events if isinstance(e, ev.RoundDone) and e.id == 1]) <= 4
    assert {id: found[id] for id in (2, 3)} == wanted
    failed = {event.id: event.message for event in engine.events if isinstance(event, ev.Failed)}
    assert [*failed] == [4, 5, 6]
    assert "the same for all replies" in failed[5]


def test_a_reply_that_is_not_written_with_others_waits_and_keeps_its_place(engine):
    events = engine.answer(generate(1), Generate(2, HELLO, 7), generate(3), Change({"temperature": 0.5}))
    order = [(type(event), getattr(event, "id", None)) for event in events]
    assert order.index((ev.Finished, 1)) < order.index((ev.Started, 2)) < order.index((ev.Finished, 2))
    assert order.index((ev.Finished, 2)) < order.index((ev.Started, 3))
    engine.answer(Change({"temperature": 0.0}))


def test_no_more_than_eight_are_written_at_once(engine):
    events = engine.answer(*(generate(id, own={"max_tokens": 6}) for id in range(1, 12)))
    running = most = 0
    for event in events:
        running += isinstance(event, ev.Started) - isinstance(event, ev.Finished)
        most = max(most, running)
    assert most == 8
    assert len([event for event in events if isinstance(event, ev.Finished)]) == 11


def test_where_memory_is_short_replies_wait_and_one_line_says_so(engine, monkeypatch):
    encoded, encode = list[int](), joint_replies.encode_prompt
    monkeypatch.setattr(OpenPair, "_room_for", lambda pair, tokens: False)
    monkeypatch.setattr(joint_replies, "encode_prompt", lambda chat, one: encoded.append(one.id) or encode(chat, one))
    events = engine.answer(generate(1), generate(2), generate(3))
    assert encoded == [1, 2, 3], "a prompt is encoded once, however many turns it waits"
    order = [(type(event), event.id) for event in events if isinstance(event, ev.Started | ev.Finished)]
    assert order == [(kind, id) for id in (1, 2, 3) for kind in (ev.Started, ev.Finished)]
    notices = [event.text for event in events if isinstance(event, ev.Notice)]
    assert notices == ["there is memory for one reply at once; others wait"]


def test_every_cache_counts_as_long_as_the_longest_text(engine, monkeypatch):
    pair = engine.worker._pair.open
    target = pair.loaded.target.model
    wanted = target.cache_bytes(2000) - target.cache_bytes(0)
    monkeypatch.setattr(open_pair, "available_bytes", lambda device: wanted or 1)
    assert pair._room_for(2000)
    monkeypatch.setattr(open_pair, "available_bytes", lambda device: max(1, wanted - 1))
    assert pair._room_for(2000) is (wanted == 0)


def mixed(id, noise):
    """A request of any kind, or one that is refused; sometimes one that is cancelled."""
    own = {"max_tokens": noise.randrange(1, 5), "temperature": noise.choice([0.0, 0.7, 1.3])}
    wrong = {"temperature": -1.0} if id % 17 == 3 else {}
    more = noise.choice([
        {},
        {"logit_bias": {5: 2.0, 7: -100.0}},
        {"logprobs": True, "top_logprobs": 3, "prompt_logprobs": True},
        {"constraint": ReplyConstraint("regex", "[a-z ]{1,9}")},
        {"constraint": ReplyConstraint("json_schema", '{"type": ["object", "boolean"]}')},
        {"constraint": ReplyConstraint("calls", chosen=("add",) * (id % 2)), "tools": TOOLS},
        {"constraint": ReplyConstraint("grammar", "start: nothing")},
        {"reference": "Hello there"},
    ])  # fmt: skip
    asked = generate(id, "Hello " * noise.randrange(1, 12), {**own, **wrong}, **more)
    return [asked, *([Cancel(id)] if id % 13 == 5 else [])]


TOOLS = '[{"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"enum": [1, 2]}}}}}]'


@pytest.mark.parametrize("count", [160, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_mixed_replies_leave_nothing_behind(engine, count):
    """Texts, samplings, constraints, tools, lengths, cancellations and errors in no order: replies are let go as they
    end, without a search for garbage, and there are never more caches than places. The process does not grow, either,
    but for what torch keeps of its own: a kernel for every size of a matrix product, up to 1,024 of them."""
    noise, resident = random.Random(5), []
    gc.collect()
    gc.disable()
    try:
        for first in range(0, count, 20):
            events = engine.answer(*(one for id in range(first, first + 20) for one in mixed(id, noise)))
            assert len([event for event in events if isinstance(event, ev.Finished | ev.Failed)]) == 20
            resident.append(process_bytes())
        alive = Counter(type(one).__name__ for one in gc.get_objects())
    finally:
        gc.enable()
    let_go = ("ToldReply", "JoinedReply", "Together", "Emission", "CopySources", "Constraint")
    assert {name: alive[name] for name in let_go} == dict.fromkeys(let_go, 0)
    if engine.pair == "scripted":
        assert resident[-1] - resident[len(resident) // 2] <= 8_000_000
    pair = engine.worker._pair.open
    assert len(pair._others) < MOST_TOGETHER


REQUESTS = 100
"""Mixed requests, asked again and again."""

MOST_GROWTH = 2_000_000


def growth(times, kept_bytes):
    """Bytes by which this process grows while it answers the same requests so many times, after the first two times.

    Args:
        kept_bytes: so many are written and kept with each reply.
    """
    engine, kept, resident = Engine("tiny"), [], []
    for _ in range(times):
        noise = random.Random(5)
        for first in range(0, REQUESTS, 20):
            engine.answer(*(one for id in range(first, first + 20) for one in mixed(id, noise)))
            kept += [b"a" * kept_bytes for _ in range(20)]
        gc.collect()
        resident.append(process_bytes())
    return resident[-1] - resident[1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kept_bytes", [0, 10_000])
def test_a_process_that_answers_the_same_requests_again_grows_no_further(tmp_path, kept_bytes):
    """In a process of its own. What torch makes for every size of a product is there after the first times.

    Control: where 10 kB of each reply are kept, that is seen.
    """
    add_tiny_pair(tmp_path)
    code = f"from test_joint_replies import growth; print(growth(10, {kept_bytes}))"
    environment = {**os.environ, "SPECCHAT_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown = int(done.stdout.split()[-1])
    assert (grown > MOST_GROWTH) == (kept_bytes > 0), grown


@pytest.mark.parametrize("where", [{"device": "cpu:2"}, {"target_at": "ssh:box"}])
def test_they_are_the_same_over_two_processes_and_with_the_target_elsewhere(preloaded, tmp_path, monkeypatch, where):
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setattr(link, "SshProcess", lambda host: InThread(target_host.load_target))
    add_tiny_pair(tmp_path)
    engine, said = Engine("tiny"), []
    try:
        for changes in ({}, where):
            load = Load({"pair": "tiny", "max_tokens": 40, "learn": False, "dtype": "float32", **changes})
            assert isinstance(engine.answer(load)[-1], ev.Ready)
            said.append(engine.texts(*(generate(id, text, own) for id, (own, text) in ASKED.items())))
    finally:
        engine.worker._pair.close()
    assert len(said[0]) == len(ASKED)
    assert said[0] == said[1]
