"""Layers that are read from a file in every pass: the same bits, bytes as foreseen, one line of what is wrong."""

import errno
import gc
import hashlib
import os
import shutil
import threading
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from native_kit import needs_native
from test_decoder import SIZES, V, branching_tree, prompt, source_of
from tiny_models import add_tiny_pair

from specchat.config import config_dir
from specchat.core.memory import PairMemory
from specchat.core.request import FIRST, PassRequest
from specchat.core.tree import TokenTree
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Load
from specchat.engine.protocol.stage_text import streaming_text
from specchat.engine.server import memory
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.memory import limit_memory, widened
from specchat.engine.server.open_pair import OpenPair
from specchat.engine.server.worker import Worker
from specchat.errors import MemoryLimitTooLow, PackedWeightsError
from specchat.models.backends.scripted import ScriptedVocabulary
from specchat.models.cpu_kernels import streamed_weights
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.cpu_kernels.streamed_weights import WeightLimit, aligned
from specchat.models.decoder.cached_model import read_together
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import Loaded, streaming_line
from specchat.settings import Settings

pytestmark = needs_native

LAYERS = 8


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    config = transformers.Qwen2Config(**{**SIZES, "num_hidden_layers": LAYERS})
    made = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.25)
    return made


@pytest.fixture
def limit(tmp_path):
    """Room for weights → a limit whose layers lie in one file."""
    return lambda room, source="source": WeightLimit(
        lambda: room, 0, tmp_path / "packed" / "tiny.layers", lambda: source, "1MB"
    )


def network_of(net, limit=None):
    return NativeNetwork(Shape.of(net.config), source_of(net), "int8", limit=limit)


@pytest.fixture
def streamed(net, limit):
    """A network that reads all its layers in every pass, and the bytes of one."""

    def make(source="source"):
        network = network_of(net, limit(3 * network_of(net).nbytes // 4, source))
        return network, network.streamed.pass_bytes // LAYERS

    return make


def said(network):
    """What passes say: over a text and trees, with taps, without some of the halves, and one that says not all."""
    model = Decoder(network, 256)
    model.prefill(prompt(40))
    tree, _, tip = branching_tree()
    first = model.read(tree, request=PassRequest(frozenset({1, 6})))
    model.keep(tree.path(tip))
    few = model.read(TokenTree(5, V).freeze(), request=PassRequest(needs=FIRST))
    view = model.view(skip_attention=[1, 2], skip_mlp=[2, 5])
    view.prefill(prompt(9))
    parts = view.read(TokenTree(3, V).freeze())
    model.keep([])
    again = model.read(branching_tree()[0])
    assert list(few.said.first) == few.logits.argmax(-1).tolist()
    return [first.logits, first.taps[1], first.taps[6], few.logits, parts.logits, again.logits]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_whatever_share_stays_in_memory_passes_give_the_same_bits(net, streamed, share):
    network, one = streamed()
    layers, kept = network.streamed, round(share * LAYERS)
    room = (kept - 2 * (kept == LAYERS)) * one  # where all fit, the buffers go
    assert network.keep_layers(room) == room
    assert len(layers.streamed) == LAYERS - kept
    assert (network.streamed is None) == (kept == LAYERS), "without layers to be read a pass is one call"
    whole = network_of(net)
    assert network.nbytes == whole.nbytes
    for one, other in zip(said(network), said(whole), strict=True):
        assert torch.equal(one, other)


def test_a_pass_reads_the_layers_that_do_not_stay_into_two_buffers(streamed, monkeypatch):
    network, one = streamed()
    network.keep_layers(3 * one)
    layers, into = network.streamed, set()
    assert layers.streamed == (0, 2, 4, 5, 7), "spread evenly"
    assert layers.pass_bytes == 5 * one
    assert str(layers) == f"3 of 8 layers stay in memory; {5 * one / 1e6:.1f} MB are read each pass"
    real = streamed_weights.LayerFile.read

    def watched(file, layer, memory, *stopped):
        into.add(np.frombuffer(memory, np.uint8).ctypes.data)
        return real(file, layer, memory, *stopped)

    monkeypatch.setattr(streamed_weights.LayerFile, "read", watched)
    compared: list[int] = []
    checksum = zlib.crc32
    monkeypatch.setattr(streamed_weights.zlib, "crc32", lambda data: compared.append(1) or checksum(data))
    model, passes = Decoder(network, 256), 20
    for token in range(passes):
        model.read(TokenTree(token, V).freeze())
        model.keep([])
    ahead = layers.bytes_read - passes * layers.pass_bytes
    assert 0 <= ahead <= 2 * one, "nothing but the layers of the next pass is read besides"
    assert len(into) == 2
    assert len(compared) == 5, "once each: a checksum takes as long as a read"


def test_one_read_of_the_weights_serves_the_texts_of_a_joint_pass(net, streamed):
    """And each text gets the bits that it gets alone."""
    network, one = streamed()
    network.keep_layers(3 * one)
    models, alone = ([Decoder(made, 256) for _ in range(3)] for made in (network, network_of(net)))
    texts = [prompt(40), prompt(9), prompt(70)]
    for own, other, text in zip(models, alone, texts, strict=True):
        own.prefill(text)
        other.prefill(text)
    tree, layers = branching_tree()[0], network.streamed
    before = layers.bytes_read
    for _ in range(20):
        (readings,) = read_together([(own, tree, PassRequest(frozenset({1, 6}))) for own in models])
        assert [*readings] == [0, 1, 2]
        for own in models:
            own.keep([])
            own.rows.rewind(own.rows.prefix[:-1])
    ahead = layers.bytes_read - before - 20 * layers.pass_bytes
    assert abs(ahead) <= 2 * one, "each pass reads the layers once, not once for each text"
    for reading, other in zip(readings.values(), alone, strict=True):
        said = other.read(tree, request=PassRequest(frozenset({1, 6})))
        assert torch.equal(reading.logits, said.logits)
        assert torch.equal(reading.taps[6], said.taps[6])


def test_reading_works_where_the_page_cache_cannot_be_avoided_and_ends_with_the_network(net, streamed, monkeypatch):
    monkeypatch.setattr(streamed_weights.LayerFile, "_read_past_cache", lambda file: False)
    before = set(threading.enumerate())
    network, _ = streamed()
    for one, other in zip(said(network), said(network_of(net)), strict=True):
        assert torch.equal(one, other)
    (thread,) = set(threading.enumerate()) - before
    del network
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_layers_are_packed_once_for_each_source_and_anew_where_the_file_is_damaged(streamed, tmp_path, monkeypatch):
    packed, file = [], tmp_path / "packed" / "tiny.layers"
    real = streamed_weights._write
    monkeypatch.setattr(streamed_weights, "_write", lambda *given: (packed.append(given[1]["source"]), real(*given)))
    wanted = said(streamed("one")[0])
    said(streamed("one")[0])
    said(streamed("other")[0])
    assert packed == ["one", "other"]
    whole = file.read_bytes()
    strange = [
        (streamed_weights._MAGIC + hashlib.blake2b(said, digest_size=32).digest() + said).ljust(len(whole), b"\0")
        for said in (b"[]", b"5", b'{"crc32": 5}', b"[" * 900, b"\xff")
    ]
    for damaged in (b"", whole[:-1], whole[:40] + b"?" + whole[41:], whole[:100], b"{}" * 5000, *strange):
        file.write_bytes(damaged)
        network, _ = streamed("other")
        assert len(packed) > 2, "it was packed anew"
        packed.pop()
    for one, other in zip(said(network), wanted, strict=True):
        assert torch.equal(one, other)
    assert sorted(path.name for path in file.parent.iterdir()) == ["tiny.layers", "tiny.layers.lock"]


def some_passes(network):
    """More passes than what was read ahead can serve; logits of the last."""
    return [Decoder(network, 64).read(TokenTree(1, V).freeze()).logits for _ in range(4)][-1]


def overwrite(file):
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(b"?")


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (lambda file: os.truncate(file, file.stat().st_size // 2), "it was changed while it was in use"),
        (overwrite, "it was changed while it was in use"),
        (lambda file: file.chmod(0), None),
        (lambda file: shutil.rmtree(file.parent), None),
    ],
    ids=["truncated", "overwritten", "forbidden", "removed"],
)
def test_a_file_that_is_changed_while_it_is_in_use_is_one_line_and_one_that_is_removed_still_serves(
    streamed, tmp_path, harm, line
):
    network, _ = streamed()
    layers, wanted = network.streamed, some_passes(network)
    file = tmp_path / "packed" / "tiny.layers"
    harm(file)
    if line is None:
        assert torch.equal(some_passes(network), wanted)
        assert not layers.failed
        return
    for _ in range(2):
        with pytest.raises(PackedWeightsError, match=line) as refused:
            some_passes(network)
        assert str(file) in str(refused.value)
        assert refused.value.exit_code == 2
    assert layers.failed


def test_a_layer_that_was_damaged_on_the_disk_is_found_when_it_is_first_read(streamed, tmp_path):
    streamed()
    file = tmp_path / "packed" / "tiny.layers"
    with file.open("r+b") as opened:
        opened.seek(-aligned(1) // 2, os.SEEK_END)
        data = opened.read(8)
        opened.seek(-len(data), os.SEEK_CUR)
        opened.write(bytes(byte ^ 1 for byte in data))
    network, _ = streamed()
    with pytest.raises(PackedWeightsError, match="layer 7 is damaged"):
        said(network)


@pytest.mark.parametrize("early", [True, False], ids=["seen before", "while it is written"])
def test_a_full_disk_is_one_line_and_leaves_nothing_behind(streamed, tmp_path, monkeypatch, early):
    free = shutil._ntuple_diskusage(10**12, 10**12, 1000 if early else 10**12)
    monkeypatch.setattr(streamed_weights.shutil, "disk_usage", lambda path: free)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(streamed_weights, "put_on_disk", full)
    with pytest.raises(PackedWeightsError, match=r"not enough space in .* for 0.00 GB .*: the disk is full") as refused:
        streamed()
    assert refused.value.exit_code == 2
    assert [path.name for path in (tmp_path / "packed").iterdir()] == ["tiny.layers.lock"]


def test_stated_memory_is_filled_with_layers_behind_a_useful_context(streamed, monkeypatch):
    held = 300_000_000
    monkeypatch.setattr(memory, "memory_bytes", lambda device: held)
    settings, cpu = Settings().but({"nodes": 4}), torch.device("cpu")

    def loaded(above_base):
        network, _ = streamed()
        target = Loaded("tiny", Decoder(network, 520), None, frozenset(), network.nbytes, "int8", "native")
        stated = settings.but({"memory": str(held + memory._RESERVE_BYTES + above_base)})
        limit, _ = limit_memory(stated, cpu, target, [], trained_bytes=1000)
        assert PairMemory(target.model).plain_bytes(target.model.context_tokens) <= limit.bytes - limit.base_bytes
        return target, limit.base_bytes - held - memory._RESERVE_BYTES

    network, one = streamed()
    pair = PairMemory(Decoder(network, 520))
    useful = 8 * 1000 + max(pair.plain_bytes(520), pair.round_bytes(4, 520) + pair.kept_bytes(4))
    useful = max(useful, 14 * 1000 + pair.plain_bytes(512))
    assert useful - pair.plain_bytes(512) < 3 * one, "layers decide here"
    target, taken = loaded(useful + 3 * one + 10)
    assert (len(target.model.network.streamed.streamed), taken) == (5, 3 * one)
    assert streaming_line(target.model) == str(target.model.network.streamed)
    target, taken = loaded(pair.plain_bytes(512) + 10_000)
    assert (len(target.model.network.streamed.streamed), taken) == (8, 0), "the shortest context comes first"
    target, taken = loaded(14 * 1000 + pair.plain_bytes(512) + 6 * one)
    assert (target.model.network.streamed, taken) == (None, 6 * one), "all of them before a longer context"
    with pytest.raises(MemoryLimitTooLow, match="is the least that works"):
        loaded(pair.plain_bytes(512) - 10_000)


def test_a_pair_whose_layers_cannot_be_read_any_more_is_loaded_anew(streamed, tmp_path):
    network, _ = streamed()
    target = Loaded("tiny", Decoder(network, 64), None, frozenset(), network.nbytes, "int8", "native")
    pair = LoadedPair("tiny", target, ScriptedVocabulary(), torch.device("cpu"), "int8", [], 0.0)
    settings = Settings().but({"memory": "1MB"})
    opened = SimpleNamespace(conversation=SimpleNamespace(settings=settings), loaded=pair)
    assert pair.key.endswith(f"|1|{pair.streaming}"), "what passes cost depends on it"
    assert OpenPair.serves(opened, settings)
    os.truncate(tmp_path / "packed" / "tiny.layers", 10)
    with pytest.raises(PackedWeightsError):
        some_passes(network)
    assert not OpenPair.serves(opened, settings)


def test_trees_get_wider_where_nobody_named_their_size(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    add_tiny_pair(tmp_path)
    said = []
    worker = Worker(CommandQueue(), said.append)

    def sizes(**changes):
        worker.answer(Load({"pair": "tiny", "dtype": "float32", **changes}))
        assert isinstance(said[-1], ev.Ready), said[-1]
        return said[-1].settings["nodes"], said[-1].settings["width"]

    shipped = sizes(controller="goodput")
    assert shipped[0] < 64
    monkeypatch.setattr(LoadedPair, "streaming", property(lambda pair: "1 of 2 layers stay in memory"))
    assert sizes(controller="goodput") == (128, 16)
    assert said[-1].settings["method_options"] == {"hydra.tokens": 16384}
    assert streaming_text(said[-1]).endswith("in memory; trees have up to 128 nodes, width 16")
    assert sizes(controller="goodput", nodes=5, method_options={"hydra.tokens": 7}) == (5, 16)
    assert said[-1].settings["method_options"] == {"hydra.tokens": 7}
    assert sizes(controller="goodput", nodes=200, width=2) == (200, 2)
    assert sizes(controller="fixed") == shipped
    sizes(controller="goodput", nodes=5)
    for changes, wanted in (
        ({"controller": "fixed"}, (5, shipped[1])),
        ({"controller": "goodput", "width": 4}, (5, 4)),
        ({"nodes": 9}, (9, 4)),
    ):
        worker.answer(Change(changes))
        assert (said[-1].settings["nodes"], said[-1].settings["width"]) == wanted
    worker.answer(Change({"nodes": 600}))
    assert isinstance(said[-1], ev.Failed)
    worker.answer(Change({"depth": 5}))
    assert said[-1].settings["nodes"] == 9, "what was refused is forgotten"
    (config_dir() / "config.toml").write_text("[settings]\nwidth = 3\n", encoding="utf-8")
    assert sizes(controller="goodput") == (128, 3)


def test_trees_of_a_draft_model_get_no_wider():
    settings = Settings().but({"controller": "goodput", "drafter": "suffix"})
    assert widened(settings, ()).nodes == 128
    drafted = settings.but({"drafter": "merge", "method_options": {"merge.of": "suffix+draft_model"}})
    assert widened(drafted, ()) == drafted


def test_too_little_for_the_head_and_two_layers_is_refused_before_anything_is_packed(net, limit, tmp_path):
    with pytest.raises(MemoryLimitTooLow, match="memory = 1MB is too little: the output head and two layers"):
        network_of(net, limit(30_000))
    assert not (tmp_path / "packed").exists()
