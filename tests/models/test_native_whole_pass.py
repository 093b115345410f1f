"""A pass that is one call says what is said layer by layer, keeps what is held, and refuses what does not fit."""

import ctypes
import gc
import weakref

import pytest
import torch
from contracts.pass_requests import requested
from native_kit import native, needs_native
from rows import each_row
from test_decoder import V, branching_tree, network, prompt

from specchat.core.request import PassRequest
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.errors import ModelError
from specchat.models.cpu_kernels import kernels

pytestmark = needs_native

TAPS = frozenset({0, 2})


@pytest.fixture
def calls(monkeypatch):
    """What the kernels were asked for, in order."""
    made: list[str] = []
    for name in ("read", "layers", "head"):
        real = getattr(kernels.Kernels, name)

        def counted(*given, real=real, name=name):
            made.append(name)
            return real(*given)

        monkeypatch.setattr(kernels.Kernels, name, counted)
    return made


def look(**more):
    """A request with a look after every layer, which keeps a pass from being one call."""
    return requested(look=lambda layer, hidden, nodes: None, **more)


def grown(model, request_of, view):
    """Readings of two passes over one tree, the first with a part of the text, and of one behind the kept path."""
    own = view(model)
    own.prefill(prompt(40))
    own.prefill([*prompt(40), 7, 8, 9])  # put off: read with the tree
    tree, right, tip = branching_tree()
    first = own.read(tree, [0, 1, right], request_of(TAPS))
    rest = own.read(tree, [node for node in range(len(tree)) if node not in (0, 1, right)], request_of(TAPS))
    own.keep(tree.path(tip))
    return first, rest, own.read(TokenTree(5, V).freeze(), request=request_of(TAPS))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize(
    "view", [lambda own: own, lambda own: own.view(skip_attention=[1], skip_mlp=[0])], ids=["whole", "view"]
)
def test_one_call_says_to_the_bit_what_layer_by_layer_is_said(family, view, calls):
    net = network(family)
    net.config.sliding_window = 512  # gemma3's, which no text here fills
    model = native(net)
    apart = grown(model, lambda taps: look(taps=taps), view)
    assert "read" not in calls
    calls.clear()
    at_once = grown(native(net), lambda taps: PassRequest(taps=taps), view)
    assert calls == ["layers", "read", "read", "read"], "of the prompt, of each tree"
    for one, other in zip(at_once, apart, strict=True):
        assert one.nodes == other.nodes
        for said, wanted in ((one.logits, other.logits), (one.said.likeliest, other.said.likeliest)):
            assert torch.equal(said, wanted)
        assert all(torch.equal(one.taps[layer], other.taps[layer]) for layer in TAPS)
        assert (one.text_states is None) == (other.text_states is None)
        if one.text_states is not None:
            assert all(torch.equal(one.text_states.layers[layer], other.text_states.layers[layer]) for layer in TAPS)


def test_what_was_read_is_never_written_over_while_someone_holds_it():
    own, held = native(network("llama")), []
    own.prefill(prompt())
    for token in range(12):
        tree = TokenTree(token, V)
        tree.add(ROOT, Guess(token + 1))
        reading = own.read(tree.freeze(), request=PassRequest(taps=TAPS))
        row = reading.logits[1]  # a view of it alone is enough
        held.append((reading, row, row.clone(), reading.said.likeliest.clone(), reading.taps[2].clone()))
        own.keep([])
    for reading, row, logits, likeliest, states in held:
        assert torch.equal(row, logits)
        assert torch.equal(reading.said.likeliest, likeliest)
        assert torch.equal(reading.taps[2], states)


def test_what_nobody_looked_at_yet_stays_what_it_was_and_what_nobody_holds_makes_room():
    own, held, fresh = native(network("llama")), [], native(network("llama"))
    for model in (own, fresh):
        model.prefill(prompt())
    places = set()
    for token in range(12):
        reading = own.read(TokenTree(token, V).freeze())
        places.add(reading.said.asked[4])
        if token % 3 == 0:
            held.append(reading)
        wanted = fresh.read(TokenTree(token, V).freeze()).logits.clone()
        if token % 3 == 0:
            held.append(wanted)
        del reading
        for model in (own, fresh):
            model.keep([])
    assert len(places) < 12, "memory is used again"
    for reading, wanted in zip(held[::2], held[1::2], strict=True):
        assert torch.equal(reading.logits, wanted)


def test_a_cache_that_has_grown_is_found_where_it_is_now_and_lets_go_of_what_it_had():
    own = native(network("llama"), context_tokens=2048)
    own.prefill(prompt(1000))
    own.read(TokenTree(3, V).freeze())
    own.keep([])
    old = weakref.ref(own.cache.room_for(1, own.network.like)[0])
    text = [*prompt(1000), 3]
    for token in range(30):
        own.read(TokenTree(token, V).freeze())
        own.keep([])
        text.append(token)
    gc.collect()
    assert old() is None
    fresh = native(network("llama"), context_tokens=2048)
    fresh.prefill(text)
    assert torch.equal(own.read(TokenTree(9, V).freeze()).logits, fresh.read(TokenTree(9, V).freeze()).logits)


def test_a_cache_that_nobody_uses_any_more_is_let_go():
    own = native(network("llama"))
    twin = own.with_new_cache()
    twin.prefill(prompt())
    twin.read(TokenTree(3, V).freeze())
    cache = weakref.ref(twin.cache)
    del twin
    gc.collect()
    assert cache() is None


def test_a_token_without_an_embedding_is_refused():
    own = native(network("llama"))
    own.prefill(prompt())
    with pytest.raises(ModelError, match=f"row {V + 3} of {V}"):
        own.read(TokenTree(V + 3, V + 9).freeze())


FAR = (ctypes.c_int32 * 64)(*[7] * 64)


def numbers(at, value):
    """Change one of the numbers about five rows: tokens, and which row each follows."""

    def change(cache, whole):
        ctypes.c_int32.from_address(whole.numbers + 4 * at).value = value

    return change


@each_row(
    ("change", "said"),
    [
        (lambda cache, whole: setattr(whole, "rows", 0), "rows is 0"),
        (lambda cache, whole: setattr(whole, "rows", 4), "numbers is 10, not 8 to 8"),
        (lambda cache, whole: setattr(whole, "missing", 5), "rows of the text is 5, not 0 to 4"),
        (lambda cache, whole: setattr(whole, "missing", -1), "rows of the text is -1"),
        (lambda cache, whole: setattr(whole, "start", -1), "the first row is -1"),
        (lambda cache, whole: setattr(whole, "start", 1 << 20), "the first row is 1048576"),
        (lambda cache, whole: setattr(whole, "common", -1), "rows that all see is -1"),
        (lambda cache, whole: setattr(whole, "common", whole.start + 1), "rows that all see is"),
        (lambda cache, whole: setattr(whole, "first", -1), "a position is -1"),
        (lambda cache, whole: setattr(whole, "first", 1 << 20), "row 0 is at position 1048576"),
        (lambda cache, whole: setattr(whole, "count", whole.count - 1), "numbers is"),
        (lambda cache, whole: setattr(whole, "count", 3), "numbers is 3, not 10 to 10"),
        (lambda cache, whole: setattr(whole, "tapped", 99), "tapped layers is 99"),
        (
            lambda cache, whole: setattr(whole, "tap_of", ctypes.addressof(FAR)),
            "a tapped layer's place is 7",
        ),
        (lambda cache, whole: setattr(whole, "taps", None), "no room for tapped states"),
        (lambda cache, whole: setattr(cache, "capacity", 1000), "a cache of 1000 rows"),
        (lambda cache, whole: setattr(cache, "kept", 2), "a cache of 2 layers of 3"),
        (numbers(5, 0), "the row above is 0, not -1 to -1"),
        (numbers(7, -2), "the row above is -2, not -1 to 1"),
        (numbers(9, 4), "the row above is 4, not -1 to 3"),
        (numbers(9, 100_000), "the row above is 100000"),
    ],
)
def test_numbers_about_a_pass_that_do_not_fit_are_refused(monkeypatch, change, said):
    own = native(network("llama"))
    own.prefill(prompt())
    read = kernels.Kernels.read

    def changed(self, threads, decoder, cache, whole):
        change(cache, whole)
        read(self, threads, decoder, cache, whole)

    monkeypatch.setattr(kernels.Kernels, "read", changed)
    with pytest.raises(ModelError, match=said):
        own.read(branching_tree()[0], request=PassRequest(taps=TAPS))
