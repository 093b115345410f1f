"""Replies that are recorded to be learnt from: what is noted of each round, how much is kept, which are drawn."""

from __future__ import annotations

import pytest
import torch
from contracts.kit import collect
from online_kit import NARROW, SETTINGS, conversed, idle, spoken
from training_kit import target

from specchat.core.budget import Budget
from specchat.core.request import EVERYTHING, FIRST
from specchat.indexes.reply_buffer import LIKELIEST, RecordedReply, ReplyBuffer
from specchat.training import learning_network as reply_recorder
from specchat.training.losses import guessed_chains
from specchat.training.online_learning import OnlineLearner, Window


@pytest.fixture(scope="module")
def model():
    return target(forgetful=True)


@pytest.mark.parametrize("method", ["hydra", "medusa"])
def test_a_recorded_reply_says_of_every_round_how_many_guesses_stood(model, method):
    """States, tokens and laws stand at their places: judging finds what really happened."""
    conversation, network = conversed(model, method)
    assert network.needs == FIRST
    network.learn(True)
    assert network.needs == EVERYTHING
    rounds = collect(conversation.reply(NARROW[0], 7)).rounds
    network.reply_ended()
    learner = network._learner
    [reply] = learner.buffer
    assert reply.tokens.tolist()[1:] == [round.tree.tokens[0] for round in rounds[:1]] + [
        token for round in rounds for token in round.emitted
    ]
    batches = [Window(reply, place, 8).batch(3) for place in range(0, len(reply) - 1, 8)]
    lengths = torch.cat([guessed_chains(learner.original, batch, learner._columns, 3)[0] for batch in batches]).tolist()
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
    conversation.speculator.controller = InTurns()
    network.learn(True)
    rounds = collect(conversation.reply(NARROW[0], 7)).rounds
    network.reply_ended()
    [reply] = network._learner.buffer
    skipped = {round.start - rounds[0].start + 1 for round in rounds if not round.budget.passes}
    assert skipped
    assert {place for place, known in enumerate(reply.known.tolist()) if not known} == skipped
    chains = sum(int(Window(reply, place, 8).batch(3).drafted(1, 9).sum()) for place in range(0, len(reply) - 1, 8))
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
    restored = ReplyBuffer.restored(buffer.saved(), 5001, 8)
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
    learner = OnlineLearner(conversed(model)[1]._head.load(), model, 9)
    learner.buffer.add(recorded(30, 64))
    learner.buffer.add(recorded(300, 64))
    chance = torch.Generator().manual_seed(1)
    drawn: list[Window] = [learner._drawn(chance) for _ in range(400)]
    assert all(0 <= window.place < len(window.reply) for window in drawn)
    long = sum(len(window.reply) == 300 for window in drawn)
    assert 350 <= long < 400, "half are of the newest, and the rest by length"
