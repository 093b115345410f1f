"""Trees of several texts read in one pass say what each says alone."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from contracts.pass_requests import requested
from cuda_graph_stand_in import FrozenRecorder
from native_kit import FourBitSource, native, needs_native
from rows import each_row
from test_decoder import FAMILIES, V, branching_tree, decoder, network

from specchat.core.request import FIRST, LOGITS, PassRequest
from specchat.core.tree import Guess, TokenTree
from specchat.errors import NotNumbers
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.decoder.cached_model import read_together
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.recorded_network import GraphNetwork

LENGTHS = (9, 130, 40, 1)


def texts(lengths):
    noise = torch.Generator().manual_seed(3)
    return [[int(t) for t in torch.randint(0, V, (length,), generator=noise)] for length in lengths]


def chain(root, tokens):
    tree = TokenTree(root, V)
    last = 0
    for token in tokens:
        last = tree.add(last, Guess(token))
    return tree.freeze()


def trees():
    branching, _, tip = branching_tree()
    rows = [(branching, branching.path(tip)), (chain(3, [4, 5]), [1]), (chain(6, []), []), (chain(8, [1]), [1])]
    return [tree for tree, _ in rows], [path for _, path in rows]


def prepared(model, longest):
    """A model for each text; some tokens of the third are put off."""
    models = [model.with_new_cache() for _ in LENGTHS]
    for own, text in zip(models, texts([longest, *LENGTHS[1:]]), strict=True):
        own.prefill(text)
    models[2].prefill([*texts([longest, *LENGTHS[1:]])[2], 7, 8, 9])
    return models


REQUESTS = [
    PassRequest(frozenset({0, 2}), needs=LOGITS), PassRequest(needs=FIRST), PassRequest(frozenset({1})), PassRequest()
]  # fmt: skip


def two_rounds(model, read, longest=9):
    """Logits, states and likeliest tokens of two rounds of each text."""
    models, said = prepared(model, longest), []
    first, paths = trees()
    for round_trees in (first, [chain(5, [2, 2])] * len(models)):
        readings = read([*zip(models, round_trees, REQUESTS, strict=True)])
        for reading, own, path in zip(readings, models, paths, strict=True):
            states = [
                *reading.taps.values(),
                *(() if reading.text_states is None else reading.text_states.layers.values()),
            ]
            best, named = reading.best_after([0], 1), reading.logprobs_after([0, 0], [1, 2])
            said.append([reading.logits, torch.tensor(best), torch.tensor(named), *states])
            own.keep(path)
    return said


def together(jobs):
    """One pass reads all of them."""
    (readings,) = read_together(jobs)
    assert [*readings] == [*range(len(jobs))]
    return [*readings.values()]


def in_groups(jobs):
    """As many passes as it takes; who is left out is read alone."""
    readings = {place: reading for one in read_together(jobs) for place, reading in one.items()}
    others = {place: jobs[place] for place in range(len(jobs)) if place not in readings}
    readings |= {place: model.read(tree, request=request) for place, (model, tree, request) in others.items()}
    return [readings[place] for place in range(len(jobs))]


def one_by_one(jobs):
    return [model.read(tree, request=request) for model, tree, request in jobs]


def scaled_embeddings():
    net = network("gemma3")
    net.config.sliding_window = 2048  # which no text here fills
    return native(net, context_tokens=2048)


NATIVE = {
    "scaled embeddings": scaled_embeddings,
    "8 bits": lambda: native(network("llama"), context_tokens=2048),
    "normed heads": lambda: native(network("qwen3"), context_tokens=2048),
    "4 bits": lambda: native(
        network("llama"), "int4", context_tokens=2048, source=FourBitSource(network("llama").state_dict())
    ),
}


@needs_native
@pytest.mark.parametrize("kind", NATIVE)
def test_rows_of_several_texts_get_the_bits_of_each_text_alone(kind):
    """Caches are of different sizes: the first text makes its own grow."""
    model = NATIVE[kind]()
    for joint, alone in zip(two_rounds(model, together, 1021), two_rounds(model, one_by_one, 1021), strict=True):
        assert len(joint) == len(alone)
        assert all(torch.equal(one, other) for one, other in zip(joint, alone, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_torchs_layers_say_the_same_together(family):
    model = decoder(network(family))
    for joint, alone in zip(two_rounds(model, together), two_rounds(model, one_by_one), strict=True):
        for one, other in zip(joint, alone, strict=True):
            torch.testing.assert_close(one, other, atol=2e-4 * max(1.0, float(other.float().abs().max())), rtol=1e-4)


@each_row("family", FAMILIES)
def test_transformers_layers_say_the_same_in_groups(family):
    model = ReferenceModel(network(family), 2048)
    for joint, alone in zip(two_rounds(model, in_groups), two_rounds(model, one_by_one), strict=True):
        for one, other in zip(joint, alone, strict=True):
            torch.testing.assert_close(one, other, atol=2e-4 * max(1.0, float(other.float().abs().max())), rtol=1e-4)


def passes_of(model, monkeypatch):
    """Collects how many texts each pass of transformers' layers reads."""
    counted, forward = [], model._decoder.forward
    monkeypatch.setattr(
        model._decoder, "forward", lambda **of: counted.append(len(of["inputs_embeds"])) or forward(**of)
    )
    return counted


def rounds_of_a_pool(model, lengths, sizes):
    """Logits of a chain of so many guesses behind each of these texts, read in groups and one by one."""
    said = []
    for read in (in_groups, one_by_one):
        models = [model.with_new_cache() for _ in lengths]
        for own, text in zip(models, texts(lengths), strict=True):
            own.prefill(text)
        jobs = [(own, chain(5, [2] * size), PassRequest()) for own, size in zip(models, sizes, strict=True)]
        said.append([reading.logits for reading in read(jobs)])
    return said


def test_texts_of_equal_lengths_are_one_pass_and_others_join_where_padding_is_cheap(monkeypatch):
    model = ReferenceModel(network("llama"), 2048)
    passes = passes_of(model, monkeypatch)
    pools = {
        "equal": ((40, 40, 40, 40), (3, 3, 3, 3), [4]),
        "nearly": ((40, 47, 52, 44), (3, 3, 3, 3), [4]),
        "mixed": ((40, 300, 45, 310), (3, 7, 3, 7), [2, 2]),
        "apart": ((12, 400), (1, 20), []),
    }
    grouped = 0
    for lengths, sizes, groups in pools.values():
        passes.clear()
        joint, alone = rounds_of_a_pool(model, lengths, sizes)
        assert [count for count in passes if count > 1] == groups
        grouped += sum(groups)
        for one, other in zip(joint, alone, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert grouped == 12, "of 14 texts"


def test_a_group_whose_positions_are_not_put_right_says_something_else(monkeypatch):
    """Control: all rows begin where those of the first text do."""
    model = ReferenceModel(network("llama"), 2048)
    real = ReferenceModel.read_joined

    def wrong(first, joined, needs):
        start = joined[0][1][0].first
        return real(first, [(own, (replace(plan, first=start), watch)) for own, (plan, watch) in joined], needs)

    monkeypatch.setattr(ReferenceModel, "read_joined", wrong)
    joint, alone = rounds_of_a_pool(model, (40, 47), (3, 3))
    assert torch.allclose(joint[0], alone[0], atol=1e-3)
    assert not torch.allclose(joint[1], alone[1], atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_recorded_passes_read_a_set_of_texts_in_one_replay_once_it_was_met_before(family):
    """Rows are padded to the same number, whatever order the texts come in; a cache that grows is recorded anew."""
    recorder = FrozenRecorder(0)
    eager = decoder(network(family), context_tokens=2048).network
    model = Decoder(GraphNetwork(eager, recorder), 2048)
    models = [model.with_new_cache() for _ in range(3)]
    alone = [Decoder(eager, 2048) for _ in range(3)]
    for own, other, text in zip(models, alone, texts((1010, 30, 12)), strict=True):
        own.prefill(text)
        other.prefill(text)
    order, replays, recordings = [0, 1, 2], [], []
    for size in (2, 2, 3, 2, 2, 3):
        order = [*order[1:], order[0]]
        before = recorder.replays, recorder.recordings
        jobs = {place: (chain(3, [4] * (size - (place == 1)))) for place in order}
        asked = PassRequest(frozenset({0, 1}))
        joint = together([(models[place], jobs[place], asked) for place in order])
        replays.append(recorder.replays - before[0])
        recordings.append(recorder.recordings - before[1])
        for place, one in zip(order, joint, strict=True):
            other = alone[place].read(jobs[place], request=asked)
            torch.testing.assert_close(one.logits, other.logits, atol=1e-3, rtol=1e-3)
            for layer in (0, 1):
                torch.testing.assert_close(one.taps[layer], other.taps[layer], atol=1e-3, rtol=1e-3)
            models[place].keep([1])
            alone[place].keep([1])
    assert recordings[0] == replays[0] == 0, "one that is met for the first time is launched kernel by kernel"
    assert recordings[1] >= 1
    assert replays[2:] == [1, 1, 1, 0], "in the last round a cache has grown"
    assert not any(recordings[2:])
    held = weakref.ref(models[1].cache.room_for(0, eager.like)[0])
    del models[1], own
    gc.collect()
    models[0].read(jobs[0])
    assert held() is None, "what a text that has ended held is freed once another one is read"


def shared_position(model, monkeypatch):
    """Rows of all texts begin at the position of the first: the correction of positions is left out."""
    real = model.network.read_together

    def wrong(passes, needs):
        first = passes[0].plan.first
        return real([replace(each, plan=replace(each.plan, first=first)) for each in passes], needs)

    monkeypatch.setattr(model.network, "read_together", wrong)
    return model


@pytest.mark.parametrize(
    "make", [lambda: decoder(network("llama")), pytest.param(NATIVE["8 bits"], marks=needs_native)]
)
def test_without_positions_of_their_own_texts_say_something_else(make, monkeypatch):
    model = shared_position(make(), monkeypatch)
    joint, alone = two_rounds(model, together), two_rounds(model, one_by_one)
    assert torch.allclose(joint[0][0], alone[0][0], atol=1e-3)
    assert not torch.allclose(joint[1][0], alone[1][0], atol=1e-3)


@pytest.mark.parametrize(
    "make", [lambda: decoder(network("llama")), pytest.param(NATIVE["8 bits"], marks=needs_native)]
)
def test_one_pass_reads_all_trees_that_can_join(make, monkeypatch):
    """One with a hook is left out, and one of other weights."""
    model, other = make(), make()
    passes = []
    real = model.network.read_together
    monkeypatch.setattr(model.network, "read_together", lambda p, needs: passes.append(len(p)) or real(p, needs))
    models = [*prepared(model, 9), other]
    look = requested(look=lambda layer, hidden, nodes: None)
    requests = [PassRequest(), PassRequest(), PassRequest(), look, PassRequest()]
    (readings,) = read_together([(own, chain(1, [2]), request) for own, request in zip(models, requests, strict=True)])
    assert passes == [3]
    assert [*readings] == [0, 1, 2]
    assert [len(reading.nodes) for reading in readings.values()] == [2] * 3


@needs_native
def test_a_text_that_says_no_numbers_leaves_the_others_readable():
    """The pass is refused as a whole, and each text may be read again."""
    model = NATIVE["8 bits"]()
    models = prepared(model, 9)
    _keys, values = models[1].cache.room_for(1, model.network.like)
    values.view(torch.int16)[:] = 0x7FC0
    jobs = [(own, chain(1, [2]), PassRequest()) for own in models]
    with pytest.raises(NotNumbers):
        [*read_together(jobs)]
    others = [job for place, job in enumerate(jobs) if place != 1]
    assert all(bool(reading.logits.isfinite().all()) for reading in together(others))
