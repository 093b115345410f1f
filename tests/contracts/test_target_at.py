"""A target in another process says what it says here, for one message a round; what goes wrong is one line."""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from contracts.kit import Letters, collect, converse, scripted_draft, scripted_target
from contracts.model_checks import CLOSE, PREFIX
from contracts.models import V, own_decoder, shared_network, source_of, tiny_network
from tiny_models import add_tiny_pair

from specchat.core.noise import Noise
from specchat.core.request import FIRST, LIKELIEST, ExtraRow, Judging, PassRequest
from specchat.core.sampling import Sampling
from specchat.core.seams import Model
from specchat.core.tree import DrawKind, Guess, TokenTree
from specchat.decoding.families import ACCEPTANCE_RULES
from specchat.drafters.parts import NO_RESOURCES, PairResources
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Generate, Load, Message
from specchat.engine.server import target_host
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.target_host import TargetHost
from specchat.engine.server.worker import Worker
from specchat.errors import CombinationError, ModelError, PlanRefused, TargetLost, UsageError
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import Loaded
from specchat.models.remote import link as links
from specchat.models.remote import messages as m
from specchat.models.remote.link import TargetLink
from specchat.models.remote.model import RemoteModel
from specchat.models.weights.weight_source import AdjustedSource
from specchat.settings import parse_target_at

OPENING = m.Open(m.PROTOCOL, "tiny", "auto", "auto", "auto")


class InThread:
    """A target's process that is a thread of this one."""

    def __init__(self, load: Any) -> None:
        requests, self.to = Pipe(duplex=False)
        self.answers, answers = Pipe(duplex=False)

        def run() -> None:
            TargetHost(requests, answers, load).run()
            answers.close()

        threading.Thread(target=run, daemon=True).start()

    def end(self) -> None:
        self.to.close()
        self.answers.close()

    def last_words(self) -> str:
        return ""


def linked(model: Model) -> TargetLink:
    loaded = Loaded("tiny", model, None, frozenset(), 1000, "float32")
    return TargetLink("ssh:box", OPENING, lambda: InThread(lambda opening, say: loaded))


def spoken(
    target: Model, draft: Model | None, again: int = 1, resources: PairResources | None = None, **settings: Any
) -> Any:
    chat = converse(target, draft, Letters(target.vocab_size), resources, **settings)
    return collect(chat.reply([3, 5, 7, 3, 5, 9, 3, 5] * again, 7))


TRAINED = ("hydra", "eagle", "medusa")
SPOKEN: list[dict[str, Any]] = [
    *({"drafter": name} for name in ("prompt_lookup", "suffix", "token_recycling", "draft_model", "merge")),
    *({"drafter": name} for name in TRAINED),
    {"drafter": "hydra", "again": 200},
    *({"drafter": "draft_model", "rule": rule} for rule in ACCEPTANCE_RULES if rule != "nest"),
    *({"drafter": "draft_model", "rule": rule, "top_k": 5} for rule in ("recursive", "traversal")),
    {"drafter": "draft_model", "rule": "typical", "method_options": {"typical.epsilon": 0.05}},
    {"drafter": "prompt_lookup", "rule": "nest"},
    {"drafter": "draft_model", "temperature": 0.0, "policy": "best_first"},
    {"drafter": "suffix", "repetition_penalty": 1.2, "frequency_penalty": 0.3, "top_p": 0.9},
    *({"drafter": "draft_model", "loop": loop} for loop in ("pearl", "overlap")),
    {"drafter": "draft_model", "loop": "pearl", "policy": "best_first"},
    {"controller": "off"},
    {"controller": "goodput", "drafter": "token_recycling"},
]


def test_replies_are_those_of_a_target_here_for_one_message_a_round():
    parted, asked = [], []
    for changes in SPOKEN:
        settings = {"controller": "fixed", "nodes": 6, "depth": 3, "temperature": 0.8, "max_tokens": 12, **changes}
        link = linked(scripted_target())
        here = spoken(scripted_target(), scripted_draft(), **settings)
        there = spoken(RemoteModel(link), scripted_draft(), **settings)
        if here.tokens != there.tokens:
            parted.append((changes, here.tokens, there.tokens))
        rounds = len(there.rounds)
        most = rounds + 2  # a cache, and the prompt
        if changes.get("drafter") in TRAINED:  # rows of the head, embeddings for it and the text, a text in parts
            most += 4
        if changes.get("rule") not in ("fair", "judge") and not rounds + 2 <= link.asked <= most:
            asked.append((changes, link.asked, rounds))
        assert all(round.timings.there_s > 0 for round in there.rounds)
        assert there.ledger.there_s == pytest.approx(sum(round.timings.there_s for round in there.rounds))
        assert there.ledger.there_s <= there.ledger.verify_s
    assert parted == []
    assert asked == []


def test_a_round_takes_some_hundred_bytes_whatever_the_vocabulary():
    """Only draws from a law that nothing truncates take that law with them: rules that compare need all of it."""
    size = 30_000
    for settings, most in (
        ({"drafter": "draft_model", "temperature": 0.0}, 1_000),
        ({"drafter": "draft_model", "temperature": 0.8}, 1_000),
        ({"drafter": "draft_model", "temperature": 0.8, "rule": "recursive", "top_k": 20}, 6_000),
        ({"drafter": "token_recycling", "temperature": 0.0}, 6_000),
    ):
        link = linked(scripted_target(size))
        models = RemoteModel(link), scripted_draft(size)
        rounds = len(spoken(*models, 1, NO_RESOURCES, nodes=8, depth=4, max_tokens=8, **settings).rounds)
        assert (link.sent_bytes + link.received_bytes) / rounds < most


def test_pieces_of_a_model_are_those_of_the_model_there():
    local = own_decoder(shared_network("llama"), 256)
    model = RemoteModel(linked(own_decoder(shared_network("llama"), 256)))
    assert (model.vocab_size, model.layers, model.context_tokens) == (V, 3, 256)
    tree = TokenTree(3, V)
    for parent, token in ((0, 4), (0, 5), (1, 6), (3, 7)):
        tree.add(parent, Guess(token))
    tree.freeze()
    for each in (local, model):
        each.prefill(PREFIX)
    expected = local.read(tree)
    for request in (PassRequest(needs=FIRST), PassRequest(needs=LIKELIEST), PassRequest()):
        model.prefill(PREFIX)
        reading = model.read(tree, request=request)
        assert reading.best_after(range(5), 1) == expected.best_after(range(5), 1)
        if request.needs.likeliest:
            assert reading.best_after([2, 4], 3) == expected.best_after([2, 4], 3)
        torch.testing.assert_close(reading.logits, expected.logits, **CLOSE)
        assert reading.logprobs_after([1, 1], [6, 9]) == pytest.approx(expected.logprobs_after([1, 1], [6, 9]))
    model.prefill(PREFIX)
    asked = model.link.asked
    reading = model.read(tree, request=PassRequest(needs=FIRST))
    model.keep(())
    model.read(TokenTree(1, V).freeze(), request=PassRequest(needs=FIRST))
    with pytest.raises(ModelError, match="the logits of an earlier pass are not kept"):
        _ = reading.logits
    assert model.link.asked == asked + 2
    # a path is kept, part of the tree is read level by level, and a text is changed in its middle
    for each in (local, model):
        each.prefill(PREFIX)
        each.read(tree)
        each.keep((1, 3))
    text = [*PREFIX, 3, 4, 6]
    assert model.cached([*text, 1]) == len(text)
    last = TokenTree(9, V)
    for each in (local, model):
        each.prefill(text)
    grown = TokenTree(9, V)
    for node, token in enumerate((9, 8, 7)):
        if node:
            grown.add(node - 1, Guess(token))
            last.add(node - 1, Guess(token))
        level = model.read(grown, [node])
        whole = local.read(last, [node])
        torch.testing.assert_close(level.logits, whole.logits, **CLOSE)
    for each in (local, model):
        each.keep((1,))
        each.prefill([*PREFIX[:-2], 1, 2, 3])
    torch.testing.assert_close(model.read(tree).logits, local.read(tree).logits, **CLOSE)
    twin = model.with_new_cache()
    twin.prefill(PREFIX)
    torch.testing.assert_close(twin.read(tree).logits, expected.logits, **CLOSE)
    assert model.cached([*PREFIX[:-2], 1]) == len(PREFIX) - 1
    for each in (local, model):
        each.prefill(PREFIX)
    shown, known = (each.read(tree, request=PassRequest(taps=frozenset({0, 2}))).taps for each in (model, local))
    for layer in (0, 2):
        torch.testing.assert_close(shown[layer], known[layer], **CLOSE)
    torch.testing.assert_close(model.embed([4, 9, 4]), local.embed([4, 9, 4]))
    torch.testing.assert_close(model.head_rows([4, 9]), local.head_rows([4, 9]))
    row = ExtraRow(0, torch.zeros(model.hidden_size))
    with pytest.raises(CombinationError, match="takes no extra rows"):
        model.read(tree, request=PassRequest(extra_rows=(row,)))


@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_states_and_rows_of_other_number_formats_arrive_as_they_are(precision: str) -> None:
    network = tiny_network("llama", hidden_size=64, intermediate_size=128, num_attention_heads=4)
    source = AdjustedSource(source_of(network), rounds=precision == "int4")
    shape, tree = Shape.of(network.config), TokenTree.of_points(3, V, [0, 0, 1], [4, 5, 6], map(Guess, (4, 5, 6)))
    weights = Builder(shape, source, precision, torch.device("cpu")).build()
    here, there = Decoder(EagerNetwork(weights), 256), RemoteModel(linked(Decoder(EagerNetwork(weights), 256)))
    readings = []
    for model in (here, there):
        model.prefill(PREFIX)
        readings.append(model.read(tree, request=PassRequest(taps=frozenset({1}))))
    for one, other in (
        ((reading.logits, reading.taps[1]) for reading in readings),
        ((model.embed([4, 9]), model.head_rows([4, 9])) for model in (here, there)),
    ):
        for ours, theirs in zip(one, other, strict=True):
            assert torch.equal(ours, theirs)
            assert ours.dtype == theirs.dtype


def test_a_cache_whose_request_failed_is_dropped_there(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[TargetHost] = []
    run = TargetHost.run
    monkeypatch.setattr(TargetHost, "run", lambda host: (hosts.append(host), run(host)))
    model = RemoteModel(linked(own_decoder(shared_network("llama"), 256)))
    for _ in range(3):
        model.prefill(PREFIX)
        with pytest.raises(ModelError, match="no rule"):
            model.read(TokenTree(1, V).freeze(), request=PassRequest(judging=_judging("no rule")))
    model.prefill(PREFIX)
    assert len(hosts[0]._held) == 1
    assert model.passes == 0


def _judging(rule: str) -> Judging:
    return Judging(rule, {}, len(PREFIX) + 1, 1, 0, Sampling(0.5), Noise(1), looks_at_draws=False)


class _Enough(Exception):
    pass


def test_reading_a_prompt_stops_when_it_is_told_to_and_goes_on_from_there():
    model = RemoteModel(linked(own_decoder(shared_network("llama"), 4096)))
    text = [(7 * place) % V for place in range(1500)]
    told: list[tuple[int, int]] = []

    def once(done: int, total: int) -> None:
        told.append((done, total))
        if done:
            raise _Enough

    with pytest.raises(_Enough):
        model.prefill(text, once)
    held = model.cached(text)
    assert 0 < held <= 1500
    done, total = told[-1]
    assert 0 < done <= held, "another piece may be read before it hears of the stop"
    assert total == 1500
    model.prefill(text, lambda done, total: told.append((done, total)))
    assert model.cached(text) == 1500
    assert told[-1] == (1500 - held, 1500 - held)


class Silent(InThread):
    """A process that starts and never answers."""

    def __init__(self) -> None:
        self.requests, self.to = Pipe(duplex=False)
        self.answers, self.nobody = Pipe(duplex=False)


def test_waiting_for_a_new_connection_stops_when_it_is_told_to():
    model = RemoteModel(link := linked(scripted_target(V)))
    model.prefill([1, 2])
    started, link._start = link._start, Silent
    link.close()
    told: list[tuple[int, int]] = []

    def third(done: int, total: int) -> None:
        told.append((done, total))
        if len(told) == 3:
            raise _Enough

    with pytest.raises(_Enough):
        model.prefill([1, 2, 3], third)
    assert told == [(0, 3)] * 3
    assert link.lost
    link._start = started
    model.prefill([1, 2, 3])
    assert model.cached([1, 2, 3]) == 3


READ = m.Read(1, None, [3, 4, 5], [-1, 0, 0], None, False, False, [], None)
JUDGE = m.Judge("follow", {}, 4, 2, 0, 7, {"temperature": 0.5}, [], [], [])
BAD_REQUESTS: list[tuple[m.Request, str]] = [
    (m.Rows(9), "cache 9"),
    (m.Rows(1), "logits of no pass"),
    (m.Prefill(1, None, 9, [1], []), "a text that is not held"),
    (m.Prefill(1, None, 0, [V], []), "a token that the vocabulary"),
    (m.Prefill(1, None, 0, [1] * 500, []), "longer than the context"),
    (m.Prefill(1, [1], 0, [1], []), "a path of no tree"),
    (m.Fill(1, 500), "longer than the context"),
    *(
        (msgspec.structs.replace(READ, **changes), said)
        for changes, said in (
            ({"tokens": [], "parents": []}, "a tree of 0 nodes"),
            ({"parents": [-1, 0, 2]}, "a node before its parent"),
            ({"tokens": [3, 4, 4]}, "two children with one token"),
            ({"tokens": [3, 4, V]}, "a token that the vocabulary"),
            ({"new": [2, 1]}, "nodes in no order"),
            ({"judge": JUDGE}, "a round of another text"),
            ({"judge": msgspec.structs.replace(JUDGE, text=1, prompt=1, sampling={"heat": 1.0})}, "sampling that"),
            ({"judge": msgspec.structs.replace(JUDGE, draws=[m.Drawn(5, DrawKind.POINT, "")])}, "a draw of no node"),
            ({"judge": msgspec.structs.replace(JUDGE, draws=[m.Drawn(1, DrawKind.POINT, "")])}, "nobody drew"),
            ({"judge": msgspec.structs.replace(JUDGE, draws=[m.Drawn(1, DrawKind.IID, "")])}, "without a law"),
            (
                {"judge": msgspec.structs.replace(JUDGE, laws=[m.Law(None, m.packed(torch.ones(3)))], draws=[
                    m.Drawn(1, DrawKind.IID, "", 0)
                ])},
                "a tensor of float32",
            ),
        )
    ),
]  # fmt: skip


def test_messages_that_contradict_themselves_are_refused_on_both_sides():
    def load(opening: m.Open, say: Any) -> Loaded:
        return Loaded("tiny", scripted_target(V), None, frozenset(), 0, "float32")

    def host() -> TargetHost:
        host = TargetHost(Pipe()[0], Pipe()[0], load)
        host._answer_to(OPENING)
        host._answer_to(m.NewCache(1))
        return host

    for request, said in BAD_REQUESTS:
        limited = host()
        limited._loaded.model.context_tokens = 256
        with pytest.raises(PlanRefused, match=said):
            limited._answer_to(request)
    for data in (b"", b"\xc1", b"\x92" * 100_000, m.encoded(m.Call([], READ))[:-1]):
        with pytest.raises(PlanRefused, match="what arrived is no message"):
            m.call_of(data)
        with pytest.raises(PlanRefused, match="what arrived is no message"):
            m.answer_of(data)
    tree = TokenTree.of_points(3, V, [0, 0], [4, 5], map(Guess, (4, 5)))
    good = m.Verdict([1], 6, [], [-1.0, -2.0], -1.0)
    passed = m.Passed(0.1, [1, 2, 3], None, None, good, None, [], None)
    for changes in (
        {"first": [1, 2]},
        {"first": [1, 2, V]},
        {"verdict": msgspec.structs.replace(good, path=[3])},
        {"verdict": msgspec.structs.replace(good, path=[1, 2])},
        {"verdict": msgspec.structs.replace(good, bonus=V)},
        {"verdict": msgspec.structs.replace(good, logprobs=[-1.0])},
        {"logits": m.packed(torch.ones(2, V))},
        {"verdict": msgspec.structs.replace(good, logprobs=[-1.0, float("nan")])},
        {"verdict": msgspec.structs.replace(good, sources=[2])},
        {"took_s": float("nan")},
        {"likeliest": m.packed(torch.full((3, 1), V)), "highest": m.packed(-torch.ones(3, 1))},
        {"likeliest": m.packed(torch.ones(3, 1)), "highest": m.packed(-torch.ones(3, 1))},
        {"logits": m.packed(torch.ones(3, V, dtype=torch.int32))},
        {"embedded": m.Embedded([V], m.packed(torch.ones(1, 8)))},
    ):
        model = RemoteModel(linked(scripted_target(V)))
        model.prefill([1, 2])
        model.link.ask = lambda *_, changes=changes: msgspec.structs.replace(passed, **changes)
        with pytest.raises(TargetLost, match="ssh:box is gone: a plan was refused"):
            model.read(tree)
    model = RemoteModel(linked(scripted_target(V)))
    with pytest.raises(TargetLost, match="it answered another question"):
        model.link.ask(m.NewCache(2), m.Passed)
    for answer in (m.Done(1), m.Done(3)):  # of a text of two tokens
        model.link.ask = lambda *_, answer=answer: answer
        with pytest.raises(TargetLost, match="another text was read"):
            model.prefill([1, 2])
        model.link.lost = ""
    link = linked(scripted_target(V))
    judge = m.judge_message(tree, Judging("follow", {}, 3, 2, 0, Sampling(0.5), Noise(1), looks_at_draws=True))
    assert [(one.child, one.kind) for one in judge.draws] == [(1, DrawKind.POINT), (2, DrawKind.POINT)]
    assert not link.lost


def test_laws_and_draws_of_a_tree_arrive_as_they_were():
    """Two guesses of one token share a node, and siblings a law; nodes keep their numbers."""
    sparse, whole = torch.zeros(V, dtype=torch.float64), torch.rand(V)
    sparse[[4, 9]] = torch.tensor([0.25, 0.75], dtype=torch.float64)
    tree = TokenTree(3, V)
    for parent, token, q in (
        (0, 9, sparse),
        (1, 8, whole),
        (0, 9, sparse),
        (0, 4, sparse),
        (1, 7, whole),
        (1, 8, None),
        (0, 5, None),
    ):
        kind = DrawKind.POINT if q is None else DrawKind.IID
        tree.add(parent, Guess(token, kind, q, -1.0, "one", {8: 1, 5: 7 << 32 | 9}[token] if q is None else None))
    tree.freeze()
    judge = m.judge_message(tree, Judging("recursive", {}, 3, 2, 0, Sampling(0.5), Noise(1), looks_at_draws=True))
    assert len(judge.laws) == 2
    copied = m.Verdict([tree.child(0, 5)], 6, [7 << 32 | 9], [], -1.0)  # from a datastore
    passed = m.answer_of(m.encoded(m.Passed(0.1, [], None, None, copied, None, [], None)))
    assert m.judged(passed.verdict, 0.1, tree, V).sources == (7 << 32 | 9,)
    read = m.Read(1, None, tree.tokens, tree.parents, None, False, False, [], judge)
    told = m.tree_of(m.call_of(m.encoded(m.Call([], read))).request, V)
    assert (told.tokens, told.parents) == (tree.tokens, tree.parents)
    for node in range(len(tree)):
        for one, other in zip(tree.draws(node), told.draws(node), strict=True):
            assert (one.child, one.guess.kind, one.guess.source) == (other.child, other.guess.kind, other.guess.source)
            assert (one.guess.q is None) == (other.guess.q is None)
            if one.guess.q is not None:
                assert one.guess.q.dtype == other.guess.q.dtype
                assert torch.equal(one.guess.q, other.guess.q)


def test_a_place_for_a_target_is_a_host_and_nothing_else():
    assert parse_target_at("ssh:me@box.local") == "me@box.local"
    assert parse_target_at("") == ""
    for wrong in ("ssh:", "ssh:-oProxyCommand=x", "ssh:box;rm", "box", "ssh:box x", "http:box"):
        with pytest.raises(UsageError, match="write it like ssh:box"):
            parse_target_at(wrong)


class Engine:
    """A worker without a process."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.worker = Worker(CommandQueue(), self.events.append)

    def answer(self, command: Any) -> list[Any]:
        self.events.clear()
        self.worker.answer(command)
        return list(self.events)

    def says(self, text: str = "hello") -> list[int]:
        events = self.answer(Generate(1, [Message("user", text)], seed=3))
        assert isinstance(events[-1], ev.Finished), events[-1]
        return [piece.token for one in events if isinstance(one, ev.RoundDone) for piece in one.pieces]


def test_the_other_machine_tells_of_its_loading_now_and_then(monkeypatch):
    class Loader:
        def __init__(self, catalog, emit, cancelled):
            self.emit = emit

        def load_target(self, name, settings):
            for done in range(100):
                self.emit(ev.Loading("read", name, done, 200))

    told = []
    monkeypatch.setattr(target_host, "Loader", Loader)
    monkeypatch.setattr(target_host, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    target_host.load_target(m.Open(m.PROTOCOL, "tiny", "auto", "auto", "auto"), told.append)
    assert len(told) == 1
    assert told[0].endswith("tiny 0 %")


def test_a_lost_connection_is_one_line_and_the_next_question_reconnects(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    add_tiny_pair(tmp_path)
    started: list[InThread] = []

    def start(host: str) -> InThread:
        started.append(InThread(target_host.load_target))
        return started[-1]

    settings = {"pair": "tiny", "dtype": "float32", "max_tokens": 12, "drafter": "suffix", "temperature": 0.7}
    engine = Engine()
    engine.answer(Load(settings))
    expected = engine.says()
    monkeypatch.setattr(links, "SshProcess", start)
    ready = engine.answer(Load({**settings, "target_at": "ssh:box"}))[-1]
    assert isinstance(ready, ev.Ready), ready
    assert any("tiny-model runs at ssh:box" in note for note in ready.notes)
    assert engine.says() == expected
    stats = engine.events[-1].stats
    assert 0 < stats.there_s <= stats.verify_s
    assert all(one.timings.there_s > 0 for one in engine.events if isinstance(one, ev.RoundDone))
    # the next message of the chat reads only what is new; an edit reads from where it begins
    edited = [Message("user", "hello there")]
    told = engine.answer(Generate(1, edited, seed=3))
    assert next(one for one in told if isinstance(one, ev.Started)).reused_tokens > 0
    started[0].end()
    failed = engine.answer(Generate(2, [Message("user", "hello")], seed=3))[-1]
    assert (failed.kind, failed.exit_code) == ("TargetLost", 1)
    assert "the target at ssh:box is gone" in failed.message
    assert "ask again to reconnect" in failed.message
    assert engine.says() == expected
    assert len(started) == 2
    changed = engine.answer(Change({"drafter": "token_recycling"}))
    assert isinstance(changed[-1], ev.Changed), changed
    assert len(engine.says()) == len(expected)
    for changes, said in (
        ({"drafter": "lookahead"}, "extra rows"),
        ({"prune_layer": 1}, "another machine"),
        (
            {"prune_layer": 0, "drafter": "suffix", "lens": True},
            "early layers, which a target on another machine does not allow",
        ),
    ):
        told = engine.answer(Change(changes))
        if isinstance(told[-1], ev.Changed):
            told = engine.answer(Generate(3, [Message("user", "hello")], seed=3))
        assert said in told[-1].message
    together = engine.answer(Load({**settings, "target_at": "ssh:box", "device": "cpu:2"}))[-1]
    assert "use one of them" in together.message
    engine.answer(Change({"drafter": "suffix", "prune_layer": 0, "lens": False}))
    assert engine.says() == expected
    engine.answer(Load(settings))
    assert started[1].to.closed
    assert engine.says() == expected
    refused = engine.answer(Load({**settings, "target_at": "ssh:box", "lens": True}))[-1]
    assert "early layers" in refused.message
    assert all(one.to.closed for one in started), "what is not used is not left running"
    assert engine.says() == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_other_number_formats_say_what_they_say_here(dtype, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    add_tiny_pair(tmp_path)
    monkeypatch.setattr(links, "SshProcess", lambda host: InThread(target_host.load_target))
    settings = {"pair": "tiny", "dtype": dtype, "max_tokens": 12, "drafter": "suffix", "temperature": 0.7}
    engine, said = Engine(), []
    for at in ("", "ssh:box"):
        ready = engine.answer(Load({**settings, "target_at": at}))[-1]
        assert isinstance(ready, ev.Ready), ready
        assert ready.dtype == dtype
        said.append(engine.says())
    assert said[0] == said[1]
    engine.answer(Load(settings))


def test_a_target_is_started_through_ssh(tmp_path, monkeypatch, capfd, preloaded):
    """An `ssh` that runs the command here: the second process is real."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    add_tiny_pair(tmp_path)
    folder = Path(tmp_path / "bin")
    folder.mkdir()
    for name, script in (
        ("ssh", 'echo "$@" > "$SPECCHAT_HOME/asked"\nwhile [ "$1" != specchat ]; do shift; done\nexec "$@"\n'),
        ("specchat", f'exec "{sys.executable}" -m specchat "$@"\n'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    settings = {"pair": "tiny", "dtype": "float32", "max_tokens": 6, "drafter": "suffix", "target_at": "ssh:box"}
    engine = Engine()
    ready = engine.answer(Load(settings))[-1]
    assert isinstance(ready, ev.Ready), ready
    assert "box specchat engine --target" in (tmp_path / "asked").read_text()
    assert len(engine.says()) == 6
    process = engine.worker._pair.open.loaded.target.model.link._process._process
    engine.worker._pair.close()
    assert process.wait(20) == 0
    (folder / "specchat").write_text("#!/bin/sh\necho 'box: no route' >&2\nexit 255\n")
    failed = engine.answer(Load(settings))[-1]
    assert failed.kind == "TargetLost"
    assert "the target at ssh:box is gone: box: no route" in failed.message
    (folder / "specchat").write_text("#!/bin/sh\necho 'Welcome to the box'\ncat > /dev/null\n")
    assert "prints something before it" in engine.answer(Load(settings))[-1].message
