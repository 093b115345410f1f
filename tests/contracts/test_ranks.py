"""A model over two processes says what it says in one: the contract of models, replies, what moves, what goes wrong."""

from __future__ import annotations

import dataclasses
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cached_property
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import test_adapter_contract
import test_borrowed_cache
import test_model_contract
import test_model_prefill
import test_model_requests
import test_parts_by_layer
import test_view_contract
import torch
import torch.distributed as dist
from contracts.kit import reply
from contracts.model_checks import CLOSE, PREFIX
from contracts.models import BUILDERS, V, over_network, own_decoder, shared_network, source_of, tiny_network
from tiny_models import add_tiny_pair
from transformers import AutoModelForCausalLM

from specchat.config import load_catalog
from specchat.core.request import PassRequest
from specchat.core.tree import Guess, TokenTree
from specchat.decoding.families import ACCEPTANCE_RULES
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Load, Message
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.pair_loading import Loader
from specchat.engine.server.worker import Worker
from specchat.errors import EngineError, ModelError, PlanRefused, RanksLost, UsageError
from specchat.models.decoder.cache_rows import PassPlan
from specchat.models.decoder.cached_model import read_together
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.linear_layers import int8_works
from specchat.models.decoder.network import Pass, SubLayers
from specchat.models.decoder.prompt_cache import KeptTexts, PromptCache
from specchat.models.decoder.shape import Shape
from specchat.models.machine import choose_devices
from specchat.models.ranks import joining, processes
from specchat.models.ranks import plan as p
from specchat.models.ranks.group import Group
from specchat.models.ranks.leading import Ranks
from specchat.models.ranks.network import Follower, rank_network, shares_of
from specchat.models.ranks.processes import start_here
from specchat.models.weights.weight_source import AdjustedSource
from specchat.settings import Settings

Build = Callable[[Any, int], Decoder]


@pytest.fixture(scope="module")
def ranks(preloaded_module) -> Iterator[Ranks]:
    """Two processes for all tests here: starting one takes as long as most of these."""
    started = start_here(("cpu", "cpu"), 1)
    yield started
    started.close()


@pytest.fixture(scope="module")
def over_ranks(ranks, tmp_path_factory) -> Iterator[Build]:
    """Makes a decoder of a network over both, each network loaded once."""
    loaded: dict[int, tuple[Any, Any]] = {}

    def build(network: Any, context_tokens: int) -> Decoder:
        if id(network) not in loaded:
            folder = tmp_path_factory.mktemp("network")
            network.save_pretrained(folder)
            shape, source = Shape.of(network.config), source_of(network)
            loaded[id(network)] = network, ranks.network(shape, source, "tiny", folder, "float32")[0]
        return Decoder(loaded[id(network)][1], context_tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BUILDERS, "ranks", build)
        yield build


def checks_of(*modules: Any) -> list[Callable[[Any], None]]:
    """The tests of these modules that take a model and nothing else."""
    functions = [unwrap(one) for module in modules for name, one in vars(module).items() if name.startswith("test_")]
    return [one for one in functions if list(inspect.signature(one).parameters) == ["subject"]]


def test_it_keeps_the_contract(over_ranks):
    checks = checks_of(test_model_contract, test_model_prefill, test_model_requests)
    assert len(checks) > 25
    for check in checks:
        check(over_network(over_ranks)("llama", 256))


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "smollm3", "gemma3_text"])
def test_biases_norms_windows_and_layers_without_rotation_are_shared_out(over_ranks, family):
    check = unwrap(test_model_contract.test_many_rounds_in_a_row_keep_the_cache_right)  # one model, not every row
    check(over_network(over_ranks)(family, 256))


def test_adapters_views_copied_rows_and_kept_texts(over_ranks):
    adapters, borrowed = test_adapter_contract, test_borrowed_cache
    for family, sizes in (("llama", adapters.SIZES), ("gemma3_text", adapters.GEMMA)):
        unwrap(adapters.test_a_rider_with_an_adapter_says_what_merged_weights_would_make_it_say)(
            "ranks", adapters.SETS["all"], family, sizes
        )
        unwrap(borrowed.test_of_a_borrowed_part_only_that_part_is_seen_at_its_positions)(
            "ranks", family, borrowed.KEPT[0]
        )
    unwrap(adapters.test_an_adapter_stays_with_its_rider_when_nodes_are_dropped)("ranks")
    unwrap(borrowed.test_a_cache_is_borrowed_through_views_with_fewer_layers_and_past_the_first_capacity)(over_ranks)
    views = [
        build(shared_network("llama"), 256).view(skip_attention=(1,), skip_mlp=(2,))
        for build in (own_decoder, over_ranks)
    ]
    torch.testing.assert_close(*map(test_view_contract.rounds, views), **CLOSE)
    unwrap(test_parts_by_layer.test_scores_are_the_products_of_queries_with_the_mean_keys_of_chunks)("ranks", "llama")


def test_rows_of_a_text_that_gave_way_come_back_on_both(over_ranks):
    model, kept = over_ranks(shared_network("llama"), 512), KeptTexts(PromptCache(64 << 20), "tiny")
    assert model.keep_texts_in(kept)
    texts = [[(7 * i + 3 * turn) % V for i in range(150)] for turn in range(2)]
    said = []
    for text in (*texts, texts[0]):
        before = model.counters.rows
        model.prefill(text)
        said.append((model.read(TokenTree(1, V).freeze()).logits, model.counters.rows - before))
        model.keep(())
    assert said[2][1] < 30 < said[0][1]
    torch.testing.assert_close(said[2][0], said[0][0], **CLOSE)


DRAFTERS = [
    "prompt_lookup", "suffix", "token_recycling", "draft_model", "lookahead", "jacobi", "hydra", "medusa", "eagle",
    "prompt_tokens", "mtp", "speculative_streaming", "layer_skip", "early_exit", "sparse_context", "merge",
]  # fmt: skip
SPOKEN: list[dict[str, Any]] = [
    *({"drafter": name} for name in DRAFTERS),
    *({"drafter": "draft_model", "rule": rule} for rule in ACCEPTANCE_RULES if rule != "nest"),
    {"drafter": "prompt_lookup", "rule": "nest"},
    {"drafter": "draft_model", "prune_layer": 1, "policy": "expansion"},
    {"drafter": "speculative_streaming", "prune_layer": 1, "policy": "best_first"},
    {"drafter": "merge", "method_options": {"merge.of": "speculative_streaming,mtp"}},
    {"drafter": "suffix", "temperature": 0.0},
    {"controller": "off"},
]


def test_replies_are_those_of_one_process(over_ranks):
    network, parted = shared_network("llama"), []
    for changes in SPOKEN:
        settings = {"controller": "fixed", "nodes": 6, "depth": 3, "temperature": 0.8, "max_tokens": 8, **changes}
        one, two = (
            reply(build(network, 256), own_decoder(network, 256), **settings) for build in (own_decoder, over_ranks)
        )
        if one.tokens != two.tokens:
            parted.append((changes, one.tokens, two.tokens))
    assert parted == []


@pytest.mark.parametrize("precision", ["int8"] * int8_works() + ["int4"])
def test_whole_numbers_say_what_one_process_says_but_for_their_rounding(ranks, tmp_path, precision):
    """What o and down multiply is rounded share by share, so logits are compared with what rounding itself changes."""
    network = tiny_network("llama", hidden_size=64, intermediate_size=128, num_attention_heads=4)
    network.save_pretrained(tmp_path)
    rounds = precision == "int4"
    shape, source, tree = Shape.of(network.config), AdjustedSource(source_of(network), rounds=rounds), TokenTree(3, V)
    for parent, token in ((0, 4), (0, 5), (1, 6)):
        tree.add(parent, Guess(token))
    tree.freeze()

    def logits(model: Decoder) -> torch.Tensor:
        model.prefill(PREFIX)
        return model.read(tree).logits

    def alone(precision: str) -> torch.Tensor:
        return logits(Decoder(EagerNetwork(Builder(shape, source, precision, torch.device("cpu")).build()), 256))

    network = ranks.network(shape, source, "tiny", tmp_path, precision, rounds=rounds)[0]
    shared, whole = logits(Decoder(network, 256)), alone(precision)
    assert 2 * (shared - whole).abs().max() < (alone("float32") - whole).abs().max()


def test_trees_of_several_texts_are_read_in_one_pass(over_ranks, ranks, monkeypatch):
    network = shared_network("gemma3_text")
    trees = [TokenTree(5, V), TokenTree(9, V), TokenTree(11, V)]
    for tree in trees[1:]:
        tree.add(0, Guess(7))
    said, told, announce = [], [], ranks.group.announce
    monkeypatch.setattr(ranks.group, "announce", lambda one: told.append(type(one.message)) or announce(one))
    for build, read in ((over_ranks, read_together), (own_decoder, None)):
        model = build(network, 256)
        models = [model.with_new_cache() for _ in trees]
        for own, length in zip(models, (30, 4, 12), strict=True):
            own.prefill([1 + i % 40 for i in range(length)])
        jobs = [(own, tree.freeze(), PassRequest(frozenset({1}))) for own, tree in zip(models, trees, strict=True)]
        if read is not None:
            (readings,) = read(jobs)
        else:
            readings = {place: own.read(tree, request=asked) for place, (own, tree, asked) in enumerate(jobs)}
        said.append([(readings[place].logits, readings[place].taps[1]) for place in range(3)])
    assert told.count(p.RunTogether) == 1
    assert told.count(p.Run) == 2, "the prompts of more than a few tokens"
    for one, other in zip(*said, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(ours, theirs, **CLOSE)


def test_each_rank_holds_its_part_of_the_weights(over_ranks):
    """Of heads that cannot be halved one rank has more, and fewer channels of the MLP for it."""
    network = over_ranks(shared_network("llama"), 256).network
    whole = own_decoder(shared_network("llama"), 256).network.nbytes
    assert 0.45 < network.nbytes / whole < 0.55
    smol = dataclasses.replace(network.shape, layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, inner=1536)
    first, second = shares_of(smol, 2)
    assert (first.heads(smol), second.heads(smol)) == (range(6), range(6, 9))
    assert [len(part.channels) for part in (first, second)] == [672, 864]
    for count in (1, 2, 3):
        shares = shares_of(smol, count)
        for kind, units in (("kv_heads", 3), ("channels", 1536), ("vocab", V)):
            assert [unit for share in shares for unit in getattr(share, kind)] == list(range(units))
    with pytest.raises(UsageError, match="4 ranks cannot share 3 heads of keys and values; nearest that works: 3"):
        shares_of(smol, 4)


def ranks_in_threads(count: int, patience_s: float = 20, load: Any = None) -> Ranks:
    """Ranks in threads of this process: they meet, and then follow; without `load` they say nothing."""
    store, led = dist.HashStore(), []

    def rank(number: int) -> None:
        group = Group(store, number, count, patience_s=patience_s)
        if number == 0:
            led.append(Ranks(group, ("cpu",) * count))
        else:
            led.append(group)  # lives on
            if load is not None:
                Follower(group, load).run()

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    threads[0].join(60)
    return next(one for one in led if isinstance(one, Ranks))


@pytest.mark.parametrize("count", [3, 4])
def test_as_many_ranks_as_heads_of_keys_and_values_say_what_one_process_says(count, monkeypatch):
    """In threads: Python 3.11 computes a cached property under one lock for all instances, and a rank that waits there
    for the others would keep them out. Processes have a lock each."""
    for one in vars(Pass).values():
        if isinstance(one, cached_property):
            monkeypatch.setattr(one, "lock", nullcontext(), raising=False)
    config = shared_network("llama").config
    wide = type(config)(**{**config.to_dict(), "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8})
    torch.manual_seed(1)
    network = AutoModelForCausalLM.from_config(wide).eval().float()
    shape, source = Shape.of(wide), source_of(network)
    ranks = ranks_in_threads(
        count, load=lambda load, group: rank_network(shape, source, "float32", torch.device("cpu"), group)
    )
    try:
        leading, shared = ranks.network(shape, source, "tiny", Path(), "float32")
        assert len(shared) == count
        assert max(shared) < 1.3 * min(shared)
        models = own_decoder(network, 256), Decoder(leading, 256)
        draft = own_decoder(shared_network("llama"), 256)
        for settings in (
            {"drafter": "suffix"},
            {"drafter": "draft_model", "rule": "traversal"},
        ):
            one, many = (
                reply(model, draft, nodes=6, depth=3, temperature=0.8, max_tokens=12, **settings) for model in models
            )
            assert one.tokens == many.tokens
    finally:
        ranks.close()
    with pytest.raises(UsageError, match="5 ranks cannot share 4 heads of keys and values; nearest that works: 4"):
        shares_of(shape, 5)


def test_a_rank_that_does_not_answer_is_not_waited_for_long():
    ranks, began = ranks_in_threads(2, patience_s=0.3), time.monotonic()
    with pytest.raises(RanksLost, match=r"the ranks lost each other: .*; load the pair again"), ranks.told(p.Stop()):
        ranks.group.all_reduce(torch.ones(3))
    assert time.monotonic() - began < 10
    with pytest.raises(RanksLost, match="load the pair again"), ranks.told(p.Stop()):
        pytest.fail("nothing is computed any more")


def test_devices_are_named_once_or_counted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for wanted, devices in (
        ("cpu:2", "cpu cpu"),
        ("cuda:0,1", "cuda:0 cuda:1"),
        ("cuda:1", "cuda:1"),
        ("cuda:1,1@box:29500", "cuda:1 cuda:1"),
        ("cpu:2@box:29500", "cpu cpu"),
        ("cpu:3", "cpu cpu cpu"),
        ("cuda:0,1,1@box:29500", "cuda:0 cuda:1 cuda:1"),
        ("cpu", "cpu"),
    ):
        assert " ".join(map(str, choose_devices(wanted))) == devices
    for wanted in (
        "cpu:0",
        "cpu:65",
        "cpu:1,2",
        "cpu:x",
        "cuda:0,2",
        "cuda:0,0",
        "cuda:2@box:1",
        "cpu@box:1",
    ):
        with pytest.raises(UsageError, match=f"device = '{wanted}'"):
            choose_devices(wanted)


class _Alone:
    """Half of a group whose other half says nothing: every sum lacks a part."""

    rank, size = 0, 2

    def all_reduce(self, values):
        return values


def test_without_the_other_half_logits_are_far_away(over_ranks):
    network = shared_network("llama")
    whole, tree = own_decoder(network, 256), TokenTree(3, V).freeze()
    whole.prefill(PREFIX)
    expected = whole.read(tree).logits
    led = over_ranks(network, 256)
    led.prefill(PREFIX)
    assert (led.read(tree).logits - expected).abs().max() < CLOSE["atol"]
    half = Decoder(rank_network(whole.network.shape, source_of(network), "float32", whole.device, _Alone()), 256)
    half.prefill(PREFIX)
    columns = half.network.share.vocab
    assert (half.read(tree).logits - expected[:, columns.start : columns.stop]).abs().max() > 0.1


def test_a_model_that_a_rank_cannot_load_is_named_and_the_ranks_go_on(ranks, over_ranks, tmp_path):
    network = shared_network("llama")
    shape, source = Shape.of(network.config), source_of(network)
    with pytest.raises(ModelError, match=r"rank 1 could not load its share: .*no-such"):
        ranks.network(shape, source, "tiny", tmp_path / "no-such", "float32")
    shared_network("qwen3").save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="rank 1 could not load its share: the weights of tiny here are others"):
        ranks.network(shape, source, "tiny", tmp_path / "other", "float32")
    assert reply(over_ranks(network, 256), controller="off", max_tokens=3).tokens
    assert not ranks.lost


RUN = p.run_message(
    1,
    Pass(
        PassPlan(3, 1, (0, 1), [5, 6, 7], 3, [-1, 0, 1], 3),
        lambda t: torch.empty(0),
        (),
        None,
        None,
        SubLayers.of_all(3),
    ),
    [],
    head=True,
)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"tokens": []}, "a pass of 0 rows"),
    ({"tokens": [5, 6, V]}, "a token that the vocabulary does not have"),
    ({"missing": 4}, "more missing tokens"),
    ({"start": 1 << 30, "common": 1 << 30}, "rows outside the cache"),
    ({"common": 4}, "rows outside the cache"),
    ({"above": [-1, 0]}, "rows that are not those of its tokens"),
    ({"above": [-1, 2, 1]}, "a row that follows a later one"),
    ({"first": 1 << 30}, "positions beyond the context"),
    ({"copied": [0, 1, 2, 3]}, "copied rows that are not there"),
    ({"attention": [0, 3]}, "attention in a layer whose rows are not held"),
    ({"mlp": [3]}, "a layer that there is not"),
    ({"entries": [1]}, "rows that enter and are not there"),
    ({"extra_rows": [0], "entries": [4], "above": [-1, 0, 1, 2]}, "a layer that there is not"),
]


def test_a_plan_that_contradicts_itself_is_refused():
    def checked(run: p.Run) -> None:
        p.plan_of(run, V, 256)
        p.parts_of(run, 3, range(3))

    checked(RUN)
    for changes, said in BAD:
        with pytest.raises(PlanRefused, match=said):
            checked(msgspec.structs.replace(RUN, **changes))
    for data in (b"", b"\xc1", p.encoded(p.Report(3)), b"\x92" * 100_000, p.encoded(p.Envelope([], RUN))[:-1]):
        with pytest.raises(PlanRefused, match="a message between ranks is none"):
            p.envelope_of(data)
    for wrong in (
        p.Keep(9, 0, [1]),
        p.Copy(1, 9, [0], 0, None),
        p.Embed(9, [1]),
        p.Stay(None),
        RUN,
        p.RunTogether([RUN]),
    ):
        with pytest.raises(PlanRefused, match="a plan was refused"):
            Follower(_Alone(), lambda load, group: pytest.fail("not asked to"))._do(wrong)
    together: list[tuple[list[p.Run], str]] = [
        ([RUN, RUN], "two passes at once over one cache"),
        ([msgspec.structs.replace(RUN, mlp=[0])], "of some layers alone"),
        ([msgspec.structs.replace(RUN, extra_rows=[0])], "no plain passes"),
        ([msgspec.structs.replace(RUN, hooked=[1])], "no plain passes"),
    ]
    p.check_together([RUN, msgspec.structs.replace(RUN, cache=2)], 3)
    for runs, said in together:
        with pytest.raises(PlanRefused, match=said):
            p.check_together(runs, 3)
    for keep in (p.Keep(1, 5, [4]), p.Keep(1, 0, [7, 6]), p.Keep(1, 0, [8])):
        with pytest.raises(PlanRefused, match="rows that are not there"):
            p.check_keep(keep, 8)


class Engine:
    """A worker without a process."""

    def __init__(self):
        self.events: list[Any] = []
        self.worker = Worker(CommandQueue(), self.events.append)

    def answer(self, command):
        self.events.clear()
        self.worker.answer(command)
        return list(self.events)

    def says(self, id=1):
        events = self.answer(Generate(id, [Message("user", "hello")], seed=3))
        assert isinstance(events[-1], ev.Finished), events[-1]
        return [piece.token for one in events if isinstance(one, ev.RoundDone) for piece in one.pieces]


def test_a_killed_rank_is_one_line_and_the_next_load_goes_on(ranks, tmp_path, monkeypatch):
    """Comes last: the process that all tests share is the one that is killed."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    add_tiny_pair(tmp_path)
    monkeypatch.setattr(processes, "start_here", lambda *_: ranks)
    settings = {"pair": "tiny", "dtype": "float32", "max_tokens": 12, "drafter": "suffix", "temperature": 0.7}
    engine = Engine()
    engine.answer(Load({**settings, "device": "cpu"}))
    expected = engine.says()
    ready = engine.answer(Load({**settings, "device": "cpu:2"}))[-1]
    assert any("tiny-model is shared out over 2 ranks" in note for note in ready.notes)
    assert engine.says() == expected
    os.kill(ranks.processes[0], signal.SIGKILL)
    began = time.monotonic()
    failed = engine.answer(Generate(2, [Message("user", "hello")], seed=3))[-1]
    assert time.monotonic() - began < 10
    assert failed.kind == "RanksLost"
    assert f"rank 1 (process {ranks.processes[0]}) was ended by SIGKILL; load the pair again" in failed.message
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{door.getsockname()[1]}"
    monkeypatch.setenv(joining.KEY_VARIABLE, "a secret of both sides")
    other = subprocess.Popen(
        [sys.executable, "-m", "specchat", "engine", "--join", at], stderr=subprocess.PIPE, text=True
    )
    ready = engine.answer(Load({**settings, "device": f"cpu:2@{at}"}))[-1]
    assert isinstance(ready, ev.Ready), ready
    assert engine.says() == expected
    engine.worker._pair.close()
    assert other.communicate(timeout=20)[1] == f"rank 1 of 2, with the engine at {at}\nthe engine has gone\n"


@pytest.mark.parametrize(
    ("device", "lost", "asked"),
    [
        ("cpu:2@box:1", "", []),
        ("cpu:2@box:2", "", ["box:2"]),
        ("cpu:3@box:1", "", ["box:1"]),
        ("cpu:2@box:1", "rank 1 has ended", ["box:1"]),
    ],
)
def test_ranks_are_used_again_for_the_same_devices_at_the_same_address(device, lost, asked, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    add_tiny_pair(tmp_path)
    joined: list[str] = []

    def shared_out(*_, **__):
        raise ModelError("the ranks are there")

    there = SimpleNamespace(devices=("cpu", "cpu"), at="box:1", lost=lost)
    others = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(joining, "let_join", lambda devices, at, cancelled: joined.append(at) or others)
    monkeypatch.setattr(Loader, "_load", shared_out)
    loader = Loader(load_catalog(), lambda event: None, lambda: False, ranks=there)
    with pytest.raises(ModelError, match="the ranks are there"):
        loader.load(Settings(pair="tiny", device=device))
    assert joined == asked


def test_who_does_not_know_the_secret_is_not_let_in(monkeypatch):
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        host, port = door.getsockname()
    monkeypatch.delenv(joining.KEY_VARIABLE, raising=False)
    with pytest.raises(UsageError, match="set SPECCHAT_JOIN_KEY to 16 or more"):
        joining.let_join(["cpu", "cpu"], f"{host}:{port}")
    monkeypatch.setenv(joining.KEY_VARIABLE, "a secret of both sides")
    with pytest.raises(UsageError, match="write it like"):
        joining.joined("no-port")
    enough, ended = threading.Event(), []

    def let_join() -> None:
        with pytest.raises(RanksLost, match="1 of 1 ranks did not join"):
            joining.let_join(["cpu", "cpu"], f"{host}:{port}", enough.is_set)
        ended.append(True)

    thread = threading.Thread(target=let_join)
    thread.start()
    time.sleep(0.5)
    for said in (b"GET / HTTP/1.1\r\n\r\n", b""):
        with socket.create_connection((host, port)) as stranger:
            stranger.sendall(said)
    monkeypatch.setenv(joining.KEY_VARIABLE, "a secret of one side alone")
    with pytest.raises(EngineError, match="has another secret"):
        joining.joined(f"{host}:{port}")
    enough.set()
    thread.join(20)
    assert ended
