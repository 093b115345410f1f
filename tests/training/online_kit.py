"""Conversations whose drafter is a tiny trained network that learns from replies."""

from __future__ import annotations

import time

from contracts.kit import Letters, collect, converse
from contracts.tiny_networks import tiny_trained, trained_resources
from training_kit import V

from specchat.config.trained_drafters import TrainedDrafters

SETTINGS = {"policy": "chain", "controller": "fixed", "nodes": 3, "depth": 3, "width": 1, "max_tokens": 32}
NARROW = [[1, 3 + index, 7, 2] for index in range(4)]
OTHER = [[1, 40 + index, 33, 2] for index in range(4)]


def conversed(model, method="hydra", **settings):
    """A conversation whose drafter is a trained network, and the network."""
    trained = TrainedDrafters("tiny", (tiny_trained(method, model, share=1.0),))
    resources = trained_resources(trained=trained)
    conversation = converse(
        model, vocabulary=Letters(V), resources=resources, **{**SETTINGS, "drafter": method} | settings
    )
    return conversation, conversation.speculator.drafter._network


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
