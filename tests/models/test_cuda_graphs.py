"""Recorded passes say what the eager layers say, whatever their bucket, and are recorded anew when memory moves."""

import pytest
import torch
from contracts.pass_requests import requested
from cuda_graph_stand_in import FrozenRecorder, RefusingRecorder
from test_decoder import FAMILIES, V, branching_tree, network, prompt, source_of

from specchat.core.request import ExtraRow, LayerHook, PassRequest
from specchat.core.states import HiddenStateSink
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.recorded_network import GraphNetwork
from specchat.models.decoder.shape import Shape


def eager(family="llama"):
    net = network(family)
    source = source_of(net)
    return EagerNetwork(Builder(Shape.of(net.config), source, "float32", torch.device("cpu")).build())


def pair_of_decoders(family="llama", context_tokens=512, recorder=None):
    """The same weights, eagerly and recorded."""
    layers = eager(family)
    recorder = recorder or FrozenRecorder()
    return Decoder(layers, context_tokens), Decoder(GraphNetwork(layers, recorder), context_tokens), recorder


def chain(count, first=5):
    tree = TokenTree(first, V)
    node = ROOT
    for i in range(count):
        node = tree.add(node, Guess((7 * i + first) % V))
    return tree.freeze()


def bush(width, first=5):
    """Width branches below the root, each with two nodes below it."""
    tree = TokenTree(first, V)
    for i in range(width):
        child = tree.add(ROOT, Guess((3 * i + 1) % V))
        for j in range(2):
            tree.add(child, Guess((5 * i + j) % V))
    return tree.freeze()


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert torch.equal(one.argmax(-1), other.argmax(-1))


def both_say_the_same(models, script):
    assert_same(*(script(model) for model in models))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", [0, 1])
def test_rounds_of_every_shape_say_what_the_eager_layers_say(family, attention):
    plain, recorded, recorder = pair_of_decoders(family, recorder=FrozenRecorder(attention))

    def rounds(model):
        said = []
        model.prefill(prompt(30))
        for tree in (chain(0), chain(4), bush(5), chain(1, 9), branching_tree()[0], chain(4, 3), bush(20), bush(5, 2)):
            said.append(model.read(tree).logits)
            model.keep(tree.path(len(tree) - 1))
        return torch.cat(said)

    both_say_the_same((plain, recorded), rounds)
    assert recorder.replays > 0


def test_what_was_recorded_for_one_pass_serves_others():
    _, recorded, recorder = pair_of_decoders()
    recorded.prefill(prompt(30))
    for first in (1, 2, 3):
        recorded.read(chain(0, first))
        recorded.keep([])
    made, replayed = recorder.recordings, recorded.network.replayed
    for first in (4, 5, 6, 7):
        recorded.read(chain(0, first))
        recorded.keep([])
    assert recorder.recordings == made
    assert recorded.network.replayed == replayed + 4


def test_a_tree_read_level_by_level_says_the_same():
    plain, recorded, _ = pair_of_decoders("qwen3")

    def levels(model):
        said = []
        for first in (5, 8):
            model.prefill(prompt(40 + first))
            tree = bush(3, first)
            for nodes in ([0], [1], [2, 3], [4, 5, 6, 7, 8, 9]):
                said.append(model.read(tree, nodes).logits)
            model.keep([1, 2])
        return torch.cat(said)

    both_say_the_same((plain, recorded), levels)


def test_missing_tokens_are_read_along():
    plain, recorded, _ = pair_of_decoders()

    def read_along(model):
        said = []
        for length in (40, 43, 50):
            model.prefill(prompt(length))
            said.append(model.read(branching_tree()[0]).logits)
        return torch.cat(said)

    both_say_the_same((plain, recorded), read_along)


@pytest.mark.parametrize("attention", [0, 1])
def test_a_first_pass_without_any_prefix_leaves_nothing_infinite_behind(attention):
    plain, recorded, _ = pair_of_decoders(context_tokens=1000, recorder=FrozenRecorder(attention))

    def from_nothing(model):
        first = model.read(chain(2)).logits  # three rows in a bucket of four: the padding has no common row to see
        model.keep([1])
        model.prefill(prompt(512))
        # So long a context takes in the row that padding was written to; a pass without padding leaves it as it was.
        return torch.cat([first, model.read(chain(3)).logits])

    both_say_the_same((plain, recorded), from_nothing)


def test_riders_say_the_same_and_leave_tokens_alone():
    plain, recorded, _ = pair_of_decoders("qwen3")
    embedding = torch.randn(64, generator=torch.Generator().manual_seed(2))

    def with_riders(model):
        said = []
        for first in (5, 6):
            tree, right, tip = branching_tree()
            model.prefill(prompt(30 + first))
            extra_rows = [
                ExtraRow(right, embedding * first),
                ExtraRow(right, embedding, after=0),
                ExtraRow(ROOT, embedding),
            ]
            reading = model.read(tree, request=requested(extra_rows))
            said += [reading.logits, reading.extra_row_logits]
            model.keep([right, tip])
            said.append(model.read(chain(2)).logits)
            model.keep([])
        return torch.cat(said)

    both_say_the_same((plain, recorded), with_riders)


def test_dropped_nodes_go_through_the_eager_layers():
    plain, recorded, recorder = pair_of_decoders()
    tree, _, _ = branching_tree()
    hook = LayerHook(frozenset({0}), lambda layer, hidden, nodes: {0, 2, 4})
    readings = []
    for model in (plain, recorded):
        model.prefill(prompt(8))
        readings.append(model.read(tree, request=PassRequest(frozenset({1}), hooks=(hook,))))
    assert recorder.recordings == 0
    assert readings[0].alive == readings[1].alive
    torch.testing.assert_close(readings[0].taps[1], readings[1].taps[1])


def test_taps_are_recorded_with_the_pass_and_outlive_the_next_one():
    plain, recorded, recorder = pair_of_decoders()
    embedding = torch.randn(64, generator=torch.Generator().manual_seed(2))

    def tapped(model):
        kept = []
        for first, layers in ((5, {0, 2}), (6, {0, 2}), (7, {1}), (8, set())):
            model.prefill(prompt(30 + 3 * first))  # three tokens of the text are read along
            taken = model.read(bush(2, first), request=requested([ExtraRow(ROOT, embedding)], layers))
            assert set(taken.taps) == set(taken.extra_row_states) == layers
            kept += [taken.taps[layer] for layer in sorted(layers)] + [
                taken.extra_row_states[i] for i in sorted(layers)
            ]
            kept += [taken.text_states.layers[layer] for layer in sorted(layers) if taken.text_states]
            model.keep([1, 2])
        return torch.cat(kept)

    plain_states, recorded_states = tapped(plain), tapped(recorded)
    torch.testing.assert_close(recorded_states, plain_states, rtol=1e-4, atol=1e-4)
    assert recorder.replays > 0


def test_views_and_prompts_with_taps_are_recorded():
    plain, recorded, recorder = pair_of_decoders(context_tokens=1000)

    def of(model):
        taken = []
        view = model.view(skip_attention=[0], skip_mlp=[1])
        view.prefill(prompt(20), tap=HiddenStateSink(frozenset({2}), taken.append))
        view.read(chain(2))
        view.keep([1])
        said = view.read(chain(3, 9), request=requested(taps=[2]))
        return torch.cat([states.layers[2] for states in taken] + [said.taps[2]]), said.logits

    before = recorder.recordings
    (states, logits), (recorded_states, recorded_logits) = of(plain), of(recorded)
    torch.testing.assert_close(recorded_states, states, rtol=1e-4, atol=1e-4)
    assert_same(logits, recorded_logits)
    assert recorder.recordings > before


def test_a_cache_that_grew_is_recorded_anew():
    """That of a text beside the first one: the first one's never grows."""
    plain, recorded, recorder = (
        of if isinstance(of, FrozenRecorder) else of.with_new_cache() for of in pair_of_decoders(context_tokens=4000)
    )
    text = prompt(1100)

    def across(model):
        said = []
        model.prefill(text[:1000])
        said.append(model.read(chain(2)).logits)
        model.prefill(text[:1015])
        for at in range(1015, 1035):  # past the first cache's 1024 rows
            said.append(model.read(chain(2, text[at])).logits)
            model.keep([1] if at % 3 else [])
        model.prefill(text[:1000])  # back to a size that was recorded over the first cache
        said.append(model.read(chain(2)).logits)
        model.keep([])
        return torch.cat(said)

    both_say_the_same((plain, recorded), across)
    assert recorded.cache.capacity > 1024
    before = recorder.recordings
    recorded.read(chain(2))
    assert recorder.recordings == before


def test_contexts_of_different_buckets_say_the_same():
    plain, recorded, _ = pair_of_decoders(context_tokens=4000)

    def at_many_lengths(model):
        said = []
        for length in (0, 20, 505, 509, 515, 1030):
            model.prefill(prompt(length))
            said.append(model.read(branching_tree()[0]).logits)
        return torch.cat(said)

    both_say_the_same((plain, recorded), at_many_lengths)


def test_twins_take_turns_without_disturbing_each_other():
    plain, recorded, _ = pair_of_decoders()

    def in_turns(model):
        twin = model.with_new_cache()
        model.prefill(prompt(30))
        twin.prefill(prompt(20))
        said = []
        for first in (3, 4, 5):
            said += [model.read(chain(1, first)).logits, twin.read(chain(2, first)).logits]
            model.keep([1])
            twin.keep([])
        return torch.cat(said)

    both_say_the_same((plain, recorded), in_turns)


def test_a_reading_outlives_the_next_pass():
    _, recorded, _ = pair_of_decoders()
    recorded.prefill(prompt(20))
    tree = bush(2)
    first = recorded.read(tree, [0]).logits
    before = first.clone()
    recorded.read(tree, [1])
    assert torch.equal(first, before)


def test_rows_and_layers_are_counted_without_the_padding():
    _, recorded, _ = pair_of_decoders()
    recorded.read(chain(2))
    assert recorded.counters.rows == 3
    assert recorded.counters.node_layers == 3 * 3


def test_passes_too_large_for_any_bucket_are_not_recorded():
    plain, recorded, recorder = pair_of_decoders()
    both_say_the_same((plain, recorded), lambda model: model.read(chain(150)).logits)
    assert recorder.recordings == 0


def test_a_device_that_cannot_record_gets_the_eager_layers():
    recorder = RefusingRecorder()
    plain, recorded, _ = pair_of_decoders(recorder=recorder)

    def rounds(model):
        model.prefill(prompt(30))
        said = [model.read(chain(2)).logits]
        model.keep([1])
        return torch.cat([*said, model.read(bush(2)).logits])

    both_say_the_same((plain, recorded), rounds)
    assert recorder.recordings == 1, "it is not tried again and again"
    assert recorded.network.replayed == 0
