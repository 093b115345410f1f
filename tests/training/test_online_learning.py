"""A trained network learns from replies: it guesses better, changes between replies only, and forgets on request."""

from __future__ import annotations

import math
import time

import pytest
import safetensors.torch
import torch
from contracts.kit import collect
from online_kit import NARROW, OTHER, conversed, idle, spoken, taught
from training_kit import V, target

from specchat.training import learning_network as reply_recorder
from specchat.training import online_learning
from specchat.training.online_learning import DEPTH, ChainComparison, Judgement

RATE = 1e-2


@pytest.fixture(scope="module")
def model():
    return target(forgetful=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A network of a few thousand numbers learns in larger steps than one of millions."""
    monkeypatch.setattr(online_learning, "LEARNING_RATE", RATE)


@pytest.fixture(scope="module")
def state(model):
    """What a network has learnt in 20 updates from a narrow stream."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online_learning, "LEARNING_RATE", RATE)
        return taught(model, NARROW, 20)[1].save_state()


def gone_on(model, state, **settings):
    """A conversation whose network has learnt from the narrow stream."""
    conversation, network = conversed(model, **settings)
    network.restore_state(state)
    network.learn(True)
    return conversation, network


@pytest.mark.parametrize(
    ("method", "updates"),
    [("medusa", 5), ("eagle", 6), ("parallel_spec", 6), ("falcon", 8), ("amphista", 4), ("clover", 4)],
)
def test_acceptance_on_a_narrow_stream_rises_whatever_the_network(model, monkeypatch, method, updates):
    monkeypatch.setattr(online_learning, "LEARNING_RATE", 2 * RATE)  # what was learnt before need not be kept here
    stream = NARROW[:1]
    before = spoken(conversed(model, method)[0], stream)
    conversation, _ = taught(model, stream, updates, method)
    assert spoken(conversation, stream) > before + 0.1


def test_acceptance_on_a_narrow_stream_rises_over_20_updates_and_survives_a_change_of_subject(model, state):
    plain = conversed(model)[0]
    before, other_before = spoken(plain, NARROW), spoken(plain, OTHER)
    conversation, network = gone_on(model, state)
    assert spoken(conversation, NARROW) > before + 0.2
    learnt = network.learnt
    assert learnt.updates >= 20
    assert learnt.now[0] > learnt.before[0], "what is said of it agrees with what it does"
    for _ in range(2):
        spoken(conversation, OTHER, network)
        idle(network)
    assert spoken(conversation, OTHER) > other_before + 0.1
    assert spoken(conversation, NARROW) > before + 0.1


@pytest.mark.parametrize("control", ["no rate", "shuffled targets"])
def test_without_a_rate_or_with_shuffled_targets_nothing_rises(model, monkeypatch, control):
    if control == "no rate":
        monkeypatch.setattr(online_learning, "LEARNING_RATE", 0.0)
    else:
        law, order = reply_recorder.target_law, torch.randperm(V, generator=torch.Generator().manual_seed(4)).int()

        def shuffled(reading, nodes):
            likeliest, log_p = law(reading, nodes)
            return order[likeliest.long()], log_p

        monkeypatch.setattr(reply_recorder, "target_law", shuffled)
    stream = NARROW[:2]
    before = spoken(conversed(model)[0], stream)
    conversation, network = taught(model, stream, 6)
    assert spoken(conversation, stream) <= before + 0.02
    learnt = network.learnt
    assert sum(learnt.now) <= sum(learnt.before) + 0.02 * learnt.chains


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_same_with_learning_on_and_off(model, temperature):
    def texts(learning):
        conversation, network = conversed(model, temperature=temperature)
        network.learn(learning)
        written = []
        for prompt in NARROW[:2]:
            written.append(collect(conversation.reply(prompt, 11)).tokens)
            network.reply_ended()
            idle(network)
        assert (network.learnt.updates > 0) == learning
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


def test_each_reply_is_judged_by_what_the_replies_before_it_taught_and_some_changed_guesses_are_told(
    model, monkeypatch
):
    monkeypatch.setattr(online_learning, "MOST_JUDGED", 4)
    conversation, network = conversed(model)
    network.learn(True)
    for reply in range(4):
        prompt = NARROW[reply]
        before = network.learnt
        spoke = collect(conversation.reply(prompt, 7))
        network.reply_ended()
        while len(network.learnt.judged) == len(before.judged):
            network.idle(0.0)
        learnt, newest = network.learnt, network.learnt.judged[-1]
        assert newest.updates == before.updates, "it was not learnt from yet"
        assert newest.chains == learnt.chains - before.chains
        for now, then, told in ((learnt.before, before.before, newest.before), (learnt.now, before.now, newest.now)):
            assert told == sum(now) - sum(then)
        first = [learnt.now[0] - sum(before.now[:1]), learnt.before[0] - sum(before.before[:1])]
        assert newest.became_right - newest.became_wrong == first[0] - first[1]
        text = [*prompt, *spoke.tokens]
        for guess in newest.changed:
            at = len(prompt) + guess.place - 1
            assert guess.wrote == text[at]
            assert list(guess.text) == text[max(0, at - 6) : at][-len(guess.text) :]
            assert guess.before != guess.now
        idle(network)
        assert not reply or newest.updates > 0
    assert not network.learnt.judged[0].changed, "nothing had been learnt yet"
    assert newest.became_right > newest.became_wrong, "it is a narrow stream"
    assert 1 <= len(newest.changed) <= 3

    learner = network._learner
    learner.original, learner.network = learner.network, learner.original  # what was gained is lost now
    spoken(conversation, NARROW[:1], network)
    while network.learnt.judged[-1] is newest:
        network.idle(0.0)
    *earlier, worse = network.learnt.judged
    assert (len(earlier), earlier[-1]) == (3, newest), "of the oldest only the sums are kept"
    assert worse.became_wrong > worse.became_right
    assert any(guess.before == guess.wrote for guess in worse.changed), "losses are told too"


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


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("counters", lambda tensor: -tensor - 1),
        ("counters", lambda tensor: tensor[:2]),
        ("counters", lambda tensor: tensor.float()),
        ("judgement", lambda tensor: tensor[:, 1:]),
        ("weights.down.weight", lambda tensor: tensor * math.nan),
        ("replies.tokens", lambda tensor: tensor + V),
        ("replies.likeliest", lambda tensor: tensor - V),
        ("replies.lengths", lambda tensor: tensor + 1),
        ("replies.lengths", lambda tensor: -tensor),
        ("replies.inputs", lambda tensor: tensor.float()),
        ("replies.known", lambda tensor: tensor[:, None]),
        ("original", lambda tensor: tensor[None]),
    ],
)
def test_a_state_that_no_learning_can_have_saved_is_refused(model, state, name, wrong):
    made = safetensors.torch.load(state)
    made[name] = wrong(made[name]).contiguous()
    with pytest.raises(ValueError, match=r"its |it holds|it was learnt|no learnt weights"):
        conversed(model)[1].restore_state(safetensors.torch.save(made))


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
        judgement.add(ChainComparison(chains, (0,) * DEPTH, (0,) * DEPTH, better, worse))
        return judgement.worse

    assert judged(500, 10, 40)
    assert not judged(500, 20, 25), "that may be chance"
    assert not judged(500, 40, 10)
    assert not judged(50, 0, 40), "too little was compared"
