"""What the drafter `pruned` takes is predicted before its network is made, and a limit holds with it too."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
import torch
from contracts.kit import PROMPT, Letters, collect, context_for, converse
from contracts.models import native_is_here, source_of
from tensor_bytes import TensorBytes
from wide_networks import WIDE_V, wide_network

from specchat.controllers.memory import Memory
from specchat.core.budget import Budget
from specchat.core.drafting_networks import LeftOut
from specchat.core.memory import MemoryLimit, PairMemory
from specchat.drafters.parts import PairResources
from specchat.errors import CombinationError
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.pruning import PrunableFile
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import own_network
from specchat.registry import NoOptions
from specchat.settings import parse_memory

CPU = torch.device("cpu")
RATIO, TEXTS, TOKENS = 0.3, 4, 64
UNITS, ALL = LeftOut(RATIO, RATIO), LeftOut(RATIO, RATIO, RATIO)


@pytest.fixture(scope="module")
def network():
    """Weights enough that they count beside the logits."""
    return wide_network(width=128, inner=512, layers=4, heads=8)


def prunable(network, native: bool = False) -> PrunableFile:
    shape = Shape.of(network.config)

    def make(shape, source):
        return (
            NativeNetwork(shape, source, "int8") if native else own_network(shape, source, "float32", CPU, "torch")[0]
        )

    target = Decoder(make(shape, source_of(network)), 2048)
    return PrunableFile(target, lambda: (source_of(network), shape), make)


@pytest.mark.parametrize(
    "native", [False, pytest.param(True, marks=pytest.mark.skipif(not native_is_here(), reason=""))]
)
@pytest.mark.parametrize("left_out", [LeftOut(), UNITS, LeftOut(0.75, 0.75), ALL, LeftOut(dimensions=0.5)], ids=str)
def test_the_predicted_weights_are_within_five_per_cent_of_those_that_are_made(native, left_out, network):
    file = prunable(network, native)
    made = file.pruned(file.by_magnitude(), left_out)
    assert file.memory(left_out, TEXTS, TOKENS).weights_bytes == pytest.approx(made.network.nbytes, rel=0.05)


def test_without_half_of_the_dimensions_every_weight_is_half_as_large(network):
    file = prunable(network)
    made = file.pruned(file.by_magnitude(), LeftOut(dimensions=0.5))
    assert made.network.nbytes == file.target.network.nbytes / 2


@pytest.mark.parametrize("left_out", [UNITS, ALL], ids=str)
def test_making_and_ranking_take_no_more_than_predicted(left_out, network):
    file = prunable(network)
    predicted = file.memory(left_out, TEXTS, TOKENS)
    making, ranking = TensorBytes(), TensorBytes()
    with making:
        file.pruned(file.by_magnitude(), left_out)
    assert making.peak <= predicted.weights_bytes + predicted.working_bytes
    texts = [[3 + (i * text) % 50 for i in range(TOKENS)] for text in range(TEXTS)]
    with ranking:
        *_, found = file.by_taylor(texts)
    assert found is not None
    assert ranking.peak <= predicted.working_bytes <= 2 * ranking.peak


def conversed(file: PrunableFile, limit: MemoryLimit | None, **settings):
    """A conversation whose drafter makes a narrower network."""
    shape = {"drafter": "pruned", "policy": "expansion", "width": 3, "depth": 4, "nodes": 30, "max_tokens": 6}
    options = {"pruned.ratio": RATIO, "pruned.samples": TEXTS}
    given = {"controller": "fixed+memory", "method_options": options, **shape, **settings}
    return converse(file.target, None, Letters(WIDE_V), PairResources(prunable=file, memory=limit), **given)


def test_a_limit_is_not_exceeded_by_the_network_its_passes_or_its_ranking(network):
    file, text = prunable(network), [3 + i % 50 for i in range(TEXTS * TOKENS)]
    pair, counted = PairMemory(file.target, made=(file.memory(UNITS, TEXTS, TOKENS),)), TensorBytes()
    limit = max(pair.round_bytes(0, len(text) + 10), pair.prompt_bytes(len(text) + 10)) + 4 * WIDE_V
    conversation = conversed(file, MemoryLimit(limit, 0, lambda: counted.peak), temperature=0.8, rule="multi_step")
    drafter = conversation.speculator.drafter
    with counted:
        collect(conversation.reply(text, 7))
        while drafter.idle(0.0):
            pass
        ledger = collect(conversation.reply(text, 8)).ledger
    assert drafter.measured
    assert ledger.drafted > 0
    assert counted.peak <= limit


def test_trees_shrink_for_the_network_and_its_passes(network):
    file, budget = prunable(network), Budget(30, 4, 3)
    alone, made = PairMemory(file.target), PairMemory(file.target, made=(file.memory(UNITS, TEXTS, TOKENS),))
    weights = made.made[0].weights_bytes
    passes = made.made[0].stand_in.pass_bytes(30, 10)
    assert made.round_bytes(30, 10) == alone.round_bytes(30, 10) + weights + passes, "the target counts twins' caches"
    context, planned = context_for(), []
    for spare in (-1, 500_000, 1 << 40):
        limit = MemoryLimit(made.round_bytes(0, 10) + made.kept_bytes(0) + spare, 0, lambda: 0)
        assert Memory(NoOptions(), budget, None, alone, limit).plan(context).nodes == 30, "it fits without the network"
        planned.append(Memory(NoOptions(), budget, None, made, limit).plan(context).nodes)
    assert planned[0] == 0 < planned[1] < planned[2] == 30


def test_where_the_network_does_not_fit_it_is_refused_with_the_least_that_works(network):
    file = prunable(network)
    base, stated = 1_000_000, "9MB"
    limit = MemoryLimit(parse_memory(stated), base, lambda: 0)
    with pytest.raises(
        CombinationError, match=r"'pruned' makes a network .* memory = 9MB leaves too little"
    ) as refused:
        conversed(file, limit, memory=stated)
    found = re.search(r": (\w+) is the least; nearest that works: .* drafter 'layer_skip'$", str(refused.value))
    assert found is not None
    conversed(file, MemoryLimit(parse_memory(found[1]), base, lambda: 0), memory=found[1])
    conversed(file, limit, memory=stated, drafter="suffix")
    conversed(file, None)


def test_the_network_before_is_gone_when_another_is_made(network):
    file = prunable(network)
    conversation = conversed(file, None)
    list(conversation.reply(PROMPT, 7))
    drafter = conversation.speculator.drafter
    before = weakref.ref(drafter._drafting._model)
    gc.disable()
    try:
        drafter._use(file.by_magnitude(), {})
        assert before() is None, "both at once would take the memory of two"
    finally:
        gc.enable()


def test_the_network_takes_texts_as_long_as_the_target_does_then(network):
    file = prunable(network)
    file.target.limit_context_(600)
    assert file.pruned(file.by_magnitude(), UNITS).context_tokens == 600
