"""The kernels refuse a pass whose rows, layers, adapters or taps are not there, before they write any of it."""

import ctypes
from array import array
from dataclasses import replace

import pytest
import torch
from contracts.pass_requests import requested
from native_kit import native, needs_native
from test_decoder import V, branching_tree, network, prompt

from specchat.core.request import Adapter, ExtraRow, PassRequest
from specchat.core.tree import TokenTree
from specchat.errors import ModelError
from specchat.models.cpu_kernels import kernels, pass_rows
from specchat.models.cpu_kernels.c_interface import KEYS
from specchat.models.decoder.kv_cache import KVCache

pytestmark = needs_native


LOOKING = requested(look=lambda layer, hidden, nodes: None)
"""With a look between layers a pass is not one call: rows are described apart."""


def change_rows(monkeypatch, change):
    """Let this be done to the description of the rows before the kernels see it."""
    layers = kernels.Kernels.layers

    def changed(self, threads, decoder, rows, which):
        change(rows)
        return layers(self, threads, decoder, rows, which)

    monkeypatch.setattr(kernels.Kernels, "layers", changed)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: setattr(c, "rows", 0),
        lambda c: setattr(c, "rows", 1 << 20),
        lambda c: setattr(c, "end", c.capacity + 1),
        lambda c: setattr(c, "end", 0),
        lambda c: setattr(c.kind[0], "common", c.end + 1),
        lambda c: setattr(c.kind[0], "common", -1),
        lambda c: setattr(c, "capacity", 1000),
        lambda c: setattr(c.kind[0], "mask", None),
    ],
)
def test_rows_that_lie_outside_the_cache_are_refused(monkeypatch, change):
    own = native(network("llama"))
    own.prefill(prompt())
    change_rows(monkeypatch, change)
    with pytest.raises(ModelError, match="the native kernels refuse this"):
        own.read(TokenTree(5, V).freeze(), request=LOOKING)


WHICH = ctypes.c_int32 * 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: setattr(c, "kept", 2), "a layer's place in the cache is 2, not -1 to 1"),
        (lambda c: setattr(c, "place_of", None), "a cache of 3 layers of 4|a cache of 2 layers of 3"),
        (lambda c: setattr(c, "adapters", 99), "adapters is 99"),
        (lambda c: setattr(c, "adapter_of", ctypes.addressof(FAR)), "a row's adapter is 7, not -1 to 0"),
        (lambda c: ctypes.c_int32.from_address(c.low_rank).__setattr__("value", 5000), "rank is 5000, not 0 to 1024"),
        (lambda c: ctypes.c_int32.from_address(c.low_rank + 4).__setattr__("value", 1), "an adapter of 1 inputs"),
    ],
)
def test_parts_and_adapters_that_are_not_there_are_refused(monkeypatch, change, said):
    own = native(network("llama"))
    view = own.view(skip_mlp=[0]) if "place" in said else own.view(skip_attention=[1])
    view.prefill(prompt())
    change_rows(monkeypatch, change)
    adapter = Adapter({(0, "q"): (torch.zeros(2, 64), torch.zeros(64, 2))})
    extra_rows = (ExtraRow(0, torch.zeros(64), adapter=adapter),)
    with pytest.raises(ModelError, match=said):
        view.read(TokenTree(5, V).freeze(), request=PassRequest(extra_rows=extra_rows))


FAR = WHICH(*[7] * 8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: setattr(c, "tapped", 99), "tapped layers is 99"),
        (lambda c: setattr(c, "tap_of", ctypes.addressof(FAR)), "a tapped layer's place is 7, not -1 to 0"),
        (lambda c: setattr(c, "taps", None), "no room for tapped states"),
    ],
)
def test_taps_without_room_are_refused(monkeypatch, change, said):
    own = native(network("llama"))
    own.prefill(prompt())
    change_rows(monkeypatch, change)
    with pytest.raises(ModelError, match=said):
        own.read(TokenTree(5, V).freeze(), request=replace(LOOKING, taps=frozenset({1})))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: setattr(c, "chunks", -1), "chunks is -1"),
        (lambda c: setattr(c, "chunk_rows", 0), "rows of a chunk is 0"),
        (lambda c: setattr(c, "chunk_rows", c.end), "rows of a chunk is"),
        (lambda c: setattr(c, "chunk_scores", None), "no room for scores"),
    ],
)
def test_scores_of_chunks_that_are_not_there_are_refused(monkeypatch, change, said):
    own = native(network("llama"))
    own.prefill(prompt())
    change_rows(monkeypatch, change)
    with pytest.raises(ModelError, match=said):
        own.with_new_cache().chunk_scores([*prompt(), 5], 4)


def test_chunks_are_scored_for_one_row_alone(monkeypatch):
    own = native(network("llama"))
    own.prefill(prompt())
    room = torch.zeros(1000)

    def change(rows):
        rows.chunks, rows.chunk_rows, rows.chunk_scores = 1, 4, room.data_ptr()

    change_rows(monkeypatch, change)
    with pytest.raises(ModelError, match="chunks scored for"):
        own.read(branching_tree()[0], request=LOOKING)


@pytest.mark.parametrize("place", [-1, 10_000, 3])
def test_a_row_written_elsewhere_than_it_sees_is_refused(monkeypatch, place):
    own = native(network("llama"))
    own.prefill(prompt())
    tree, _, _ = branching_tree()

    def elsewhere(kind, values):
        return array(kind, [place] * len(values) if isinstance(values, range) else values)

    monkeypatch.setattr(pass_rows, "array", elsewhere)
    if place == 3:  # a row of the prefix, which every row sees
        assert own.read(tree, request=LOOKING).logits.isfinite().all()
        return
    with pytest.raises(ModelError, match="row 0 does not see itself"):
        own.read(tree, request=LOOKING)


@pytest.mark.parametrize("move", [(0, 64), (-1, 3)])
def test_rows_that_are_not_in_the_cache_do_not_move(move):
    cache = torch.zeros(1, 1, 64, 32, dtype=torch.bfloat16)
    with pytest.raises(ModelError, match="a row that moves is"):
        kernels.kernels_for().move_rows(cache, cache.clone(), [move])


def test_a_cache_of_other_numbers_is_not_moved():
    cache = torch.zeros(1, 1, 64, 32)
    with pytest.raises(ModelError, match="keys"):
        kernels.kernels_for().move_rows(cache, cache.clone(), [(0, 1)])


def by_row(keys, values):
    """(layers, heads, rows, head_dim) copies of both: of values the second of a pair of rows lies first."""
    layers, heads, rows, size = keys.shape
    keys = keys.view(layers, heads, rows // KEYS, size // 2, 2, KEYS // 2, 2).permute(0, 1, 2, 5, 4, 3, 6)
    values = values.view(layers, heads, rows // 2, size, 2).transpose(3, 4).flip(3)
    return keys.reshape(layers, heads, rows, size).clone(), values.reshape(layers, heads, rows, size).clone()


def filled_cache(rows):
    cache = KVCache(range(3), rows, KEYS, kernels.kernels_for())
    stored = cache.room_for(rows, torch.empty(2, 32, dtype=torch.bfloat16))
    for each in stored:
        each.copy_(torch.randn(each.shape))
    return cache, *stored


@pytest.mark.parametrize("first", [0, 1, 6])
def test_rows_of_another_cache_are_copied_as_the_cache_lays_them_out(first):
    to, *own = filled_cache(1024)
    of, *theirs = filled_cache(1536)
    rows = [*range(6), 9, 8, 40, 41, 42, 1001, 1300, 1301, 77]
    before, taken = by_row(*own), by_row(*theirs)
    to.copy_rows_(of, rows, first, layers=(0, 2))
    for old, new, source in zip(before, by_row(*own), taken, strict=True):
        assert torch.equal(new[:, :, first : len(rows)][[0, 2]], source[:, :, rows[first:]][[0, 2]])
        assert torch.equal(new[1], old[1])
        assert torch.equal(new[:, :, :first], old[:, :, :first])
        assert torch.equal(new[:, :, len(rows) :], old[:, :, len(rows) :])


@pytest.mark.parametrize("row", [-1, 1536])
def test_rows_that_another_cache_does_not_have_are_not_copied(row):
    (to, *_), (of, *_) = filled_cache(1024), filled_cache(1536)
    with pytest.raises(ModelError, match="a row that is copied is"):
        to.copy_rows_(of, [3, row])


def test_rows_move_as_the_cache_lays_them_out():
    cache, keys, values = filled_cache(128)

    before = by_row(keys, values)
    assert cache.keep_rows_(30, [31, 34, 71]) == 33
    for old, new in zip(before, by_row(keys, values), strict=True):
        assert torch.equal(new[:, :, 30:33], old[:, :, [31, 34, 71]])
        assert torch.equal(new[:, :, :30], old[:, :, :30])
        assert torch.equal(new[:, :, 33:], old[:, :, 33:])


@pytest.mark.parametrize("position", [-1, 1 << 20])
def test_a_row_at_a_position_without_a_rotation_is_refused(monkeypatch, position):
    own = native(network("llama"))
    own.prefill(prompt())

    def elsewhere(kind, values):
        return array(kind, values if isinstance(values, range) else [position] * len(values))

    monkeypatch.setattr(pass_rows, "array", elsewhere)
    with pytest.raises(ModelError, match=f"row 0 is at position {position} of"):
        own.read(branching_tree()[0], request=LOOKING)


def test_layers_that_are_not_there_are_refused():
    own = native(network("llama"))
    own.prefill(prompt())
    net = own.network
    with pytest.raises(ModelError, match="layers 0 to 4 of 3"):
        net._kernels._done(
            net._kernels._library.decoder_layers(
                net._kernels._team_of(1), ctypes.byref(net._c), ctypes.byref(net._c), 0, 4
            )
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"named": 0}, "likeliest tokens is 0, not 1 to 64"),
        ({"named": 65}, "likeliest tokens is 65, not 1 to 64"),
        ({"named": 9, "apart": 8}, "room for likeliest tokens is 8, not 9 to 64"),
        ({"tokens": None}, "no room for the likeliest tokens"),
        ({"logits": None, "logsumexp": 64}, "sums of logits that are not asked for"),
    ],
)
def test_what_cannot_be_asked_of_the_head_is_refused(monkeypatch, change, said):
    read = kernels.Kernels.read

    def changed(self, threads, decoder, cache, whole):
        for name, value in change.items():
            setattr(whole, name, value)
        return read(self, threads, decoder, cache, whole)

    own = native(network("llama"))
    own.prefill(prompt())
    monkeypatch.setattr(kernels.Kernels, "read", changed)
    with pytest.raises(ModelError, match=said):
        own.read(TokenTree(5, V).freeze())
