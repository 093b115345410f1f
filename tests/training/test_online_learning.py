"""A trained network learns from replies: it guesses better, changes between replies only, and forgets on request."""

from __future__ import annotations

import time

import pytest
import torch
from contracts.kit import Letters, collect, converse
from contracts.tiny_networks import tiny_trained
from training_kit import V, target

from specchat.config.trained_drafters import TrainedDrafters
from specchat.core.budget import Budget
from specchat.drafters.parts import PairResources
from specchat.models.learned import online_learning, reply_recorder
from specchat.models.learned.judgement import DEPTH, Compared, Judgement
from specchat.models.learned.online_learning import OnlineLearner
from specchat.models.learned.reply_windows import Window, windows_of
from specchat.models.learned.unrolling import accepted_lengths
from specchat.structures.reply_buffer import LIKELIEST, RecordedReply, ReplyBuffer

RATE = 5e-3
SETTINGS = {"policy": "chain", "controller": "fixed", "nodes": 3, "depth": 3, "width": 1, "max_tokens": 32}
NARROW = [[1, 3 + index, 7, 2] for index in range(4)]
OTHER = [[1, 40 + index, 33, 2] for index in range(4)]


@pytest.fixture(scope="module")
def model():
    return target(forgetful=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A network of a few thousand numbers learns in larger steps than one of millions."""
    monkeypatch.setattr(online_learning, "LEARNING_RATE", RATE)


def conversed(model, method="hydra", **settings):
    """A conversation whose drafter is a trained network, and the network."""
    trained = TrainedDrafters("tiny", (tiny_trained(method, model, share=1.0),))
    resources = PairResources(trained=trained)
    conversation = converse(
        model, vocabulary=Letters(V), resources=resources, **{**SETTINGS, "drafter": method} | settings
    )
    return conversation, conversation._speculator.drafter._network


def spoken(conversation, prompts, network=None):
    """Share of the guesses that stood in replies to these prompts; the network is told that each has ended."""
    rounds = []
    for prompt in prompts:
        rounds += collect(conversation.reply(prompt, 7)).rounds
        if network is not None:
            network.reply_ended()
    return sum(round.accepted for round in rounds) / sum(round.tree.drafted for round in rounds)


def idle(network):
    while network.idle(time.monotonic() + 10):
        pass


def taught(model, prompts, updates, method="hydra", **settings):
    """A conversation whose network has learnt from replies to these prompts, written again and again."""
    conversation, network = conversed(model, method, **settings)
    network.learn(True)
    while network.learnt.updates < updates:
        spoken(conversation, prompts, network)
        idle(network)
    return conversation, network


@pytest.fixture(scope="module")
def state(model):
    """What a network has learnt in 50 updates from a narrow stream."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online_learning, "LEARNING_RATE", RATE)
        return taught(model, NARROW, 50)[1].save_state()


def gone_on(model, state, **settings):
    """A conversation whose network has learnt from the narrow stream."""
    conversation, network = conversed(model, **settings)
    network.restore_state(state)
    network.learn(True)
    return conversation, network


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_acceptance_on_a_narrow_stream_rises_whatever_the_network(model, method):
    before = spoken(conversed(model, method)[0], NARROW)
    conversation, _ = taught(model, NARROW, 30, method)
    assert spoken(conversation, NARROW) > before + 0.1


def test_acceptance_on_a_narrow_stream_rises_over_50_updates_and_survives_a_change_of_subject(model, state):
    plain = conversed(model)[0]
    before, other_before = spoken(plain, NARROW), spoken(plain, OTHER)
    conversation, network = gone_on(model, state)
    assert spoken(conversation, NARROW) > before + 0.2
    learnt = network.learnt
    assert learnt.updates >= 50
    assert learnt.now[0] > learnt.before[0], "what is said of it agrees with what it does"
    for _ in range(4):
        spoken(conversation, OTHER, network)
        idle(network)
    assert spoken(conversation, OTHER) > other_before + 0.1
    assert spoken(conversation, NARROW) > before + 0.1


@pytest.mark.parametrize("control", ["no rate", "shuffled targets"])
def test_without_a_rate_or_with_shuffled_targets_nothing_rises(model, monkeypatch, control):
    if control == "no rate":
        monkeypatch.setattr(online_learning, "LEARNING_RATE", 0.0)
    else:
        law, order = reply_recorder._law, torch.randperm(V, generator=torch.Generator().manual_seed(4)).int()

        def shuffled(reading, nodes):
            likeliest, log_p = law(reading, nodes)
            return order[likeliest.long()], log_p

        monkeypatch.setattr(reply_recorder, "_law", shuffled)
    before = spoken(conversed(model)[0], NARROW)
    conversation, network = taught(model, NARROW, 20)
    assert spoken(conversation, NARROW) <= before + 0.02
    learnt = network.learnt
    assert sum(learnt.now) <= sum(learnt.before) + 0.02 * learnt.chains


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_same_with_learning_on_and_off(model, temperature):
    def texts(learning):
        conversation, network = conversed(model, temperature=temperature)
        network.learn(learning)
        written = []
        for prompt in NARROW:
            written.append(collect(conversation.reply(prompt, 11)).tokens)
            network.reply_ended()
            idle(network)
        assert (network.learnt.updates > 2) == learning
        return written

    assert texts(True) == texts(False)


def test_a_reply_begins_with_the_newest_weights_and_nothing_changes_within_it(model, state):
    conversation, network = gone_on(model, state)
    before = network._drafting
    assert network._next is not None, "there are newer weights than those that draft"
    network._learner.add(network._learner.buffer[0])
    assert network._learner.due, "there is something to learn"
    events = conversation.reply(NARROW[0], 7)
    next(events)
    next(events)
    taken, updates = network._drafting, network.learnt.updates
    assert taken is not before, "a reply begins with the newest weights"
    weights = [parameter.clone() for parameter in network._learner.network.parameters()]
    for _ in events:
        assert network._drafting is taken
        assert network._next is None
        assert (network.learnt.updates, network._bout) == (updates, None)
    for one, other in zip(weights, network._learner.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_idle_work_stops_at_its_deadline_and_goes_on_later(model):
    conversation, network = conversed(model)
    network.learn(True)
    spoken(conversation, NARROW[:1], network)
    pieces = 0
    while network.idle(0.0):  # long past: one piece each
        pieces += 1
    assert pieces > online_learning.WINDOWS
    assert network.learnt.updates > 0
    assert not network.idle(time.monotonic() + 1)


def test_a_reply_is_judged_before_it_is_learnt_from(model):
    conversation, network = conversed(model)
    network.learn(True)
    for reply in range(2):
        spoken(conversation, NARROW[reply:][:1], network)
        chains, updates = network.learnt.chains, network.learnt.updates
        while network.learnt.chains == chains:
            network.idle(0.0)
        assert network.learnt.updates == updates
        idle(network)


def test_learning_uses_one_thread_and_gives_the_others_back(model, monkeypatch):
    conversation, network = conversed(model)
    network.learn(True)
    spoken(conversation, NARROW[:1], network)
    used, before = set(), torch.get_num_threads()
    loss = online_learning.chain_loss
    monkeypatch.setattr(
        online_learning, "chain_loss", lambda *given: (used.add(torch.get_num_threads()), loss(*given))[1]
    )
    torch.set_num_threads(2)
    try:
        idle(network)
        assert (used, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("method", ["hydra", "medusa"])
def test_a_recorded_reply_says_of_every_round_how_many_guesses_stood(model, method):
    """States, tokens and laws stand at their places: judging finds what really happened."""
    conversation, network = conversed(model, method)
    network.learn(True)
    rounds = collect(conversation.reply(NARROW[0], 7)).rounds
    network.reply_ended()
    learner = network._learner
    [reply] = learner.buffer
    assert reply.tokens.tolist()[1:] == [round.tree.tokens[0] for round in rounds[:1]] + [
        token for round in rounds for token in round.emitted
    ]
    batches = [window.batch(3) for window in windows_of(reply, 8)]
    lengths = torch.cat([accepted_lengths(learner.original, batch, learner._columns, 3) for batch in batches]).tolist()
    for round in rounds[:-2]:
        assert lengths[round.start - rounds[0].start] == round.accepted
    for place, token in enumerate(reply.tokens[2:].tolist(), 1):
        assert reply.likeliest[place, 0] == token, "greedy text is what the target held likeliest"


def test_places_without_states_are_not_learnt_from(model):
    class InTurns:
        def plan(self, context):
            return Budget(3, 3, 1) if (context.round + 1) % 3 else Budget(0, 0, 0, passes=False)

        def observe(self, round):
            pass

    conversation, network = conversed(model)
    conversation._speculator.controller = InTurns()
    network.learn(True)
    rounds = collect(conversation.reply(NARROW[0], 7)).rounds
    network.reply_ended()
    [reply] = network._learner.buffer
    skipped = {round.start - rounds[0].start + 1 for round in rounds if not round.budget.passes}
    assert skipped
    assert {place for place, known in enumerate(reply.known.tolist()) if not known} == skipped
    chains = sum(int(window.batch(3).drafted(1, 9).sum()) for window in windows_of(reply, 8))
    assert chains == sum(reply.known[: len(reply) - 1].tolist())
    idle(network)
    assert network.learnt.updates > 0


def test_nothing_is_kept_while_learning_is_off(model):
    conversation, network = conversed(model)
    spoken(conversation, NARROW, network)
    network.learn(True)
    events = conversation.reply(NARROW[0], 7)
    for _ in range(3):
        next(events)
    network.learn(False)
    collect_rest = list(events)
    assert collect_rest
    network.reply_ended()
    assert network.save_state() == b""


def test_what_was_learnt_is_saved_and_restored_and_forgotten(model, state):
    again, restored = conversed(model)
    untaught = spoken(again, NARROW)
    restored.restore_state(state)
    assert restored.save_state() == state, "the same state gives the same bytes"
    assert spoken(again, NARROW) > untaught + 0.2
    restored.learn(True)
    replies = restored.learnt.replies
    spoken(again, NARROW[:1], restored)
    idle(restored)
    assert restored.learnt.replies == replies + 1

    restored.restore_state(b"")
    assert restored.save_state() == b""
    assert spoken(again, NARROW) == pytest.approx(untaught, abs=0.01)


def test_what_another_network_learnt_is_refused(model, state):
    for made in (b"x" * 99, state[:-9], state.replace(b"weights.down", b"weights.nown")):
        with pytest.raises(ValueError, match=r"no learnt weights|weights of another network"):
            conversed(model)[1].restore_state(made)
    other = conversed(model)[1]
    other._sha256 = "00" * 32
    with pytest.raises(ValueError, match="learnt from other weights than those that are here now"):
        other.restore_state(state)


def test_what_has_become_worse_goes_back_to_the_original_weights(model, state):
    conversation, network = gone_on(model, state)
    learner = network._learner
    learner._judgement = Judgement()
    learner.original = online_learning._copy(learner.network)  # as if it had been trained so
    with torch.no_grad():
        for parameter in learner.network.parameters():
            parameter.mul_(-1.0)
    for prompt in NARROW:
        spoken(conversation, [prompt], network)
        learner._owed = 0
        idle(network)
    assert network.learnt.went_back == 1
    assert network.learnt.chains == 0
    for one, other in zip(learner.network.parameters(), learner.original.parameters(), strict=True):
        assert torch.equal(one, other)


def test_only_a_sure_loss_counts_as_worse():
    def judged(chains, better, worse):
        judgement = Judgement()
        judgement.add(Compared(chains, (0,) * DEPTH, (0,) * DEPTH, better, worse))
        return judgement.worse

    assert judged(500, 10, 40)
    assert not judged(500, 20, 25), "that may be chance"
    assert not judged(500, 40, 10)
    assert not judged(50, 0, 40), "too little was compared"


def recorded(tokens, width=8):
    return RecordedReply(
        torch.arange(tokens + 1, dtype=torch.int32),
        torch.full((tokens, width), tokens, dtype=torch.bfloat16),
        torch.ones(tokens, dtype=torch.bool),
        torch.zeros(tokens, LIKELIEST, dtype=torch.int32),
        torch.zeros(tokens, LIKELIEST, dtype=torch.float16),
    )


def test_the_buffer_is_bounded_and_keeps_the_newest():
    buffer = ReplyBuffer(20 * recorded(10).size_bytes)
    for tokens in range(8, 60):
        buffer.add(recorded(tokens))
        assert buffer.size_bytes == sum(reply.size_bytes for reply in buffer) <= buffer.most_bytes
    assert buffer.lengths()[-1] == 59
    restored = ReplyBuffer.restored(buffer.saved())
    assert restored.lengths() == buffer.lengths()
    assert torch.equal(restored[0].inputs, buffer[0].inputs)
    buffer.add(recorded(5000))
    assert (len(buffer), buffer.size_bytes) == (0, 0)


def test_a_long_reply_is_recorded_from_its_beginning_up_to_a_limit(model, monkeypatch):
    monkeypatch.setattr(reply_recorder, "MOST_REPLY_TOKENS", 16)
    conversation, network = conversed(model)
    network.learn(True)
    spoken(conversation, NARROW[:1], network)
    [reply] = network._learner.buffer
    assert 16 <= len(reply) <= 16 + 1 + SETTINGS["depth"]


def test_replies_are_recorded_one_by_one_and_a_long_one_is_drawn_more_often(model):
    learner = OnlineLearner(conversed(model)[1]._load(), model, 9)
    learner.buffer.add(recorded(30, 64))
    learner.buffer.add(recorded(300, 64))
    chance = torch.Generator().manual_seed(1)
    drawn: list[Window] = [learner._drawn(chance) for _ in range(400)]
    assert all(0 <= window.place < len(window.reply) for window in drawn)
    long = sum(len(window.reply) == 300 for window in drawn)
    assert 350 <= long < 400, "half are of the newest, and the rest by length"
