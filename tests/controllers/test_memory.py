"""The memory controller: peaks are predicted, a limit is never exceeded, and what was not foreseen counts too."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from contracts.kit import Letters, V, context_for, converse, make_policy, make_rule, random_tree, scripted_target, speak
from contracts.models import BUILDERS, perturbed
from contracts.proposing import Proposing, counting_up
from tensor_bytes import TensorBytes
from wide_networks import WIDE_V, wide_network

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.controllers.memory import Memory
from specchat.core.budget import Budget
from specchat.core.constraint import ConstraintSource, compiled
from specchat.core.memory import LEAST_TOKENS, MemoryLimit, PairMemory, TextClaim, TextClaims, shares
from specchat.decoding.reply_events import RoundWritten
from specchat.decoding.speculate import Speculator
from specchat.decoding.together import JoinedReply, Together
from specchat.drafters.parts import PairResources
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.registry import NoOptions
from specchat.trees import TREE_POLICIES


@pytest.fixture(scope="module")
def network():
    """Two thin layers: the logits are nearly all."""
    return wide_network(width=64, inner=128, layers=2, heads=4)


@pytest.mark.parametrize("nodes", [0, 20, 100])
@pytest.mark.parametrize("path", list(BUILDERS))
def test_the_predicted_peak_of_a_pass_is_within_five_per_cent_of_the_bytes_of_its_tensors(path, nodes, network):
    model = BUILDERS[path](network, 2048)
    text = [3 + i % 50 for i in range(300)]
    model.prefill(text)
    if path == "graphs":
        model.read(random_tree(WIDE_V, nodes, 1))  # what is recorded stays, and counts as held
        model.prefill(text)
    counted = TensorBytes()
    with counted:
        said = model.read(random_tree(WIDE_V, nodes, 1))
    predicted = model.pass_bytes(1 + nodes, 300)
    if isinstance(model, Decoder) and isinstance(model.network, NativeNetwork):
        inside = model.network._kernels.working_bytes(model.network.threads, model.network._c, 1 + nodes, 301 + nodes)
        assert inside > 0
        predicted -= inside  # no tensors
    assert said.logits.nbytes <= counted.peak
    assert counted.peak <= predicted + 40_000
    if nodes:
        assert predicted <= 1.05 * counted.peak + 40_000


@pytest.mark.parametrize("path", [path for path in BUILDERS if path != "graphs"])
def test_the_predicted_cache_is_what_it_takes_while_it_grows(path, network):
    model = BUILDERS[path](network, 2048)
    predicted = {tokens: model.cache_bytes(tokens) for tokens in (1, 1000, 1030)}
    assert predicted[1] == predicted[1000] < predicted[1030]
    counted = TensorBytes()
    with counted:
        model.prefill([3 + i % 50 for i in range(1020)])
        grown = counted.held
        model.fill_for_benchmark(1030)
        model.read(random_tree(WIDE_V, 1, 1))
    assert grown == pytest.approx(predicted[1000], rel=0.02)
    assert predicted[1030] <= counted.peak <= predicted[1030] + model.pass_bytes(256, 1024)
    both = model.cache_bytes(1030)
    twin = model.with_new_cache()
    assert model.cache_bytes(1030) == twin.cache_bytes(1030) > both, "twins share the memory"


@pytest.fixture(scope="module")
def pair(network):
    """Makes a target and a draft model with large vocabularies."""
    other = perturbed(network, 0.02)
    return lambda: [BUILDERS["decoder"](one, 2048) for one in (network, other)]


def limited(pair, limit, **settings):
    """A whole reply with a draft model under a limit; the peak, and how many nodes each round planned."""
    target, draft = pair()
    counted = TensorBytes()
    resources = PairResources(memory=MemoryLimit(limit, 0, lambda: counted.peak))
    shape = {"drafter": "draft_model", "policy": "expansion", "width": 3, "depth": 4, "nodes": 30, "max_tokens": 8}
    conversation = converse(
        target, draft, Letters(WIDE_V), resources, controller="fixed+memory", **{**shape, **settings}
    )
    with counted:
        written = (event for event in conversation.reply([3, 5, 7, 3, 5], 7) if isinstance(event, RoundWritten))
        planned = [event.round.budget.nodes for event in written]
    return counted.peak, planned


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.8}, {"temperature": 0.8, "rule": "multi_step"}], ids=["greedy", "warm", "q"]
)
def test_a_limit_is_never_exceeded_and_trees_shrink_with_it(settings, pair):
    kept = 4 * WIDE_V
    target, draft = pair()
    least = PairMemory(target, (draft,)).round_bytes(0, 20) + kept
    planned = []
    for more in (0, 300_000, 600_000, 1_200_000, 1 << 40):
        peak, nodes = limited(pair, least + more, **settings)
        assert peak <= least + more
        planned.append(nodes)
    most = [max(nodes) for nodes in planned]
    assert most[0] == 0
    assert most == sorted(most)
    assert 0 < most[1] < most[3] < most[4] == 30
    assert len(set(planned[2])) <= 2, "from round to round the number of nodes does not swing"


def written_together(pair, limit, texts=6):
    """Replies that share passes under a limit: the peak, the nodes of every joint pass, and its predicted peak."""
    target, draft = pair()
    counted = TensorBytes()
    resources = PairResources(memory=MemoryLimit(limit, 0, lambda: counted.peak))
    shape = {"drafter": "draft_model", "policy": "expansion", "width": 3, "depth": 4, "nodes": 12, "max_tokens": 6}
    models = [(target, draft), *((target.with_new_cache(), draft.with_new_cache()) for _ in range(texts - 1))]
    chats = [
        converse(*own, Letters(WIDE_V), resources, controller="fixed+memory", **{**shape, "temperature": 0.8})
        for own in models
    ]
    passes, together, shown = [], Together(), {}

    def take(number, event):
        shown[number] = event  # as the app holds the round that it shows
        if isinstance(event, RoundWritten) and (joint := event.round.timings.joint) is not None:
            passes.append((joint.rows - joint.texts, joint.texts))

    with counted:
        for number, chat in enumerate(chats):
            together.add(JoinedReply(chat.steps([3, 5, 7 + number, 3, 5], 7), partial(take, number), pytest.fail))
        while len(together):
            together.turn()
    most, at_once = max(passes)
    pair_memory = PairMemory(target, (draft,))
    predicted = pair_memory.round_bytes(most, 13, texts=at_once, widest=12) + pair_memory.kept_bytes(most, at_once)
    return counted.peak, [nodes for nodes, _ in passes], predicted


def test_texts_that_share_passes_share_a_limit_which_is_never_exceeded(pair):
    target, draft = pair()
    memory = PairMemory(target, (draft,))
    alone = memory.round_bytes(0, 20) + memory.kept_bytes(0)
    most = []
    for more in (6_000_000, 7_000_000, 8_000_000, 1 << 40):
        peak, nodes, predicted = written_together(pair, alone + more)
        assert peak <= alone + more
        if more < 1 << 40:
            assert peak >= 0.92 * (alone + more), "and what there is is used"
        else:
            assert peak == pytest.approx(predicted, rel=0.05)
        most.append(sum(nodes) / len(nodes))
    assert most == sorted(most), "the less memory, the fewer rows"
    assert 0 < most[0] < most[1] < most[2] < most[3]


def test_what_is_worth_least_is_dropped_first():
    """The shares are the best of all ways to divide so many nodes, by what their guesses are worth together."""
    claims = [TextClaim(10, 4, worth=worth) for worth in (0.8, 0.3, 0.6)]
    for nodes in range(13):
        found = shares(claims, nodes)
        assert sum(found) == nodes

        def worth(counts):
            return sum(claim.worth**place for claim, n in zip(claims, counts, strict=True) for place in range(1, n + 1))

        ways = (counts for counts in itertools.product(range(5), repeat=3) if sum(counts) == nodes)
        assert worth(found) == pytest.approx(max(map(worth, ways)))


def test_a_claim_goes_with_the_context_of_its_reply():
    claims, context = TextClaims(), context_for()
    claims.of(context, 4).nodes = 3
    assert [claim.nodes for claim in claims.all] == [3]
    assert claims.of(context, 4).nodes == 3
    del context
    assert claims.all == []


@pytest.mark.parametrize("tokens", [300, 1000, 1900])
def test_a_limited_cache_grows_in_steps_and_never_takes_more_than_one_that_doubles(tokens, network):
    doubling, stepping = (BUILDERS["decoder"](network, 2048) for _ in range(2))
    stepping.limit_context_(2048)
    counted = TensorBytes()
    with counted:
        for end in range(100, tokens + 1, 100):
            stepping.prefill([3 + i % 50 for i in range(end)])
    assert stepping.cache_bytes(1) <= doubling.cache_bytes(tokens)
    assert stepping.cache.capacity == {300: 512, 1000: 1024, 1900: 2560}[tokens]
    assert stepping.cache_bytes(2049) <= doubling.cache_bytes(2049)
    assert counted.peak <= doubling.cache_bytes(2049) + stepping.pass_bytes(256, tokens)


def test_what_was_not_foreseen_counts_from_then_on():
    held = 0
    pair, limit = PairMemory(scripted_target()), MemoryLimit(60_000, 0, lambda: held)
    controller = Memory(NoOptions(), Budget(16, 4, 2), None, pair, limit)
    parts = Proposing(counting_up), make_policy(TREE_POLICIES["expansion"]), make_rule(ACCEPTANCE_RULES["follow"])
    context = context_for()
    before = controller.plan(context)
    assert before == Budget(16, 4, 2)
    speak(Speculator(scripted_target(), *parts, controller), 2, context)
    assert controller.plan(context) == before
    held = 58_000
    speak(Speculator(scripted_target(), *parts, controller), 2, context)
    after = controller.plan(context)
    assert 0 < after.nodes < before.nodes
    assert after.why == f"{after.nodes} nodes fit in memory"
    held = 70_000
    speak(Speculator(scripted_target(), *parts, controller), 2, context)
    assert controller.plan(context).nodes == 0


def test_forced_text_fits_in_memory_too():
    """It is put into trees besides what the budget has."""
    pair, context, drafted = PairMemory(scripted_target()), context_for(), list[int]()
    context.constraint = compiled(ConstraintSource("regex", "A{60}B"), Letters(V, eos_ids=(V - 1,)), V)
    parts = Proposing(counting_up), make_policy(TREE_POLICIES["expansion"]), make_rule(ACCEPTANCE_RULES["follow"])
    least = pair.round_bytes(0, len(context.history)) + pair.kept_bytes(0)
    for rows in (1, 20, 50, 55, 70, 1000):
        limit = least + rows * (pair.round_bytes(1, 20) - pair.round_bytes(0, 20) + pair.kept_bytes(1))
        controller = Memory(NoOptions(), Budget(16, 4, 2), None, pair, MemoryLimit(limit, 0, lambda: 0))
        speculator = Speculator(scripted_target(), *parts, controller)
        tree = speculator.propose(context, speculator.plan(context)).tree
        assert controller.predicted_bytes(tree.drafted, len(context.history)) <= limit
        drafted.append(tree.drafted)
    assert drafted == sorted(drafted)
    assert drafted[0] == 0 < drafted[-1]


def test_riders_count_as_rows():
    pair = PairMemory(scripted_target())
    assert pair.round_bytes(4, 10, extra_rows=3) - pair.round_bytes(4, 10) == 3 * 8 * V


def test_a_context_fits_into_what_is_left_and_the_least_is_what_it_says(network):
    model = BUILDERS["decoder"](network, 2048)
    pair = PairMemory(model)
    least = pair.plain_bytes(LEAST_TOKENS)
    assert pair.most_tokens(least) >= LEAST_TOKENS
    assert pair.most_tokens(least - 1) == 0
    assert pair.most_tokens(1 << 40) == 2048
    room = (least + pair.plain_bytes(2048)) // 2
    tokens = pair.most_tokens(room)
    assert LEAST_TOKENS < tokens < 2048
    model.limit_context_(tokens)
    counted = TensorBytes()
    with counted:
        model.prefill([3 + i % 50 for i in range(tokens - 1)])
        model.read(random_tree(WIDE_V, 0, 1))
    assert counted.peak <= room
