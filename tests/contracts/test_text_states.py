"""A drafter sees the state of every token of the text exactly once, whatever happens to it, on every model path."""

from __future__ import annotations

import itertools

import pytest
import torch
from contracts.kit import collect, converse
from contracts.models import V

from specchat.core.states import HiddenStateSink
from specchat.models.decoder.cache_rows import common_prefix

pytestmark = pytest.mark.usefixtures("plugins_listed")

TREE = {"policy": "expansion", "controller": "fixed", "nodes": 6, "depth": 3, "width": 2, "max_tokens": 24}


def true_states(make_model, tokens, layer):
    """(n, d) from one plain pass over the tokens."""
    taken = []
    model = make_model()
    model.prefill(
        [*tokens, *range(9)], tap=HiddenStateSink(frozenset({layer}), taken.append)
    )  # long enough not to be put off
    return torch.cat([states.layers[layer] for states in taken])[: len(tokens)]


class Watched:
    """A conversation whose drafter's knowledge is checked after every event."""

    def __init__(self, make_model, **settings):
        self.make_model = make_model
        changes = {**TREE, "drafter": "stateful", "method_options": {"stateful.layer": 1}, **settings}
        self.conversation = converse(make_model(), make_model(), **changes)
        self.drafter = self.conversation.speculator.drafter
        self.text = []

    def say(self, prompt, **more):
        said = collect(self.conversation.reply(prompt, 7, **more))
        self.text = [*prompt, *said.tokens]
        return said

    def check(self, known, unread=1):
        """The drafter has seen every token but the last ones: each of the new ones once, and with its own state."""
        before, given = known
        drafter, after = self.drafter, self.drafter.tokens
        assert after == self.text[: len(after)]
        assert len(after) >= len(self.text) - unread
        kept = common_prefix(before, after)
        new = drafter.given[given:]
        starts = [kept, *(end for _, end in new)][: len(new)]
        assert [first for first, _ in new] == starts, "in order, nothing twice"
        assert (new[-1][1] if new else kept) == len(after)
        expected = true_states(self.make_model, after, drafter.layer)
        torch.testing.assert_close(torch.stack(drafter.states), expected, atol=2e-4, rtol=2e-4)

    def known(self):
        return list(self.drafter.tokens), len(self.drafter.given)


LONG = [(5 * i + i // 7) % V for i in range(40)]


def test_every_token_of_a_chat_is_seen_once_with_its_own_state(make_model):
    chat = Watched(make_model)
    known = chat.known()
    chat.say(LONG)
    chat.check(known)
    for following in ([7, 8], list(range(30)), [3]):  # a few tokens are put off, many are not
        known = chat.known()
        chat.say([*chat.text, *following])
        chat.check(known)


def test_an_edit_is_seen_from_its_first_token_on(make_model):
    chat = Watched(make_model)
    chat.say(LONG)
    for place in (35, 10, 0):
        known = chat.known()
        chat.say([*LONG[:place], 60, *LONG[place + 1 :]])
        chat.check(known)
    known = chat.known()
    chat.say(LONG[:12])
    chat.check(known)


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 9])
def test_a_reply_that_is_cut_ends_for_the_drafter_where_the_text_ends(make_model, max_tokens):
    chat = Watched(make_model, max_tokens=max_tokens)
    known = chat.known()
    chat.say(LONG)
    chat.check(known, unread=2)
    known = chat.known()
    chat.say([*chat.text, 4])
    chat.check(known, unread=2)


def test_stretches_written_with_other_methods_are_caught_up_with(make_model):
    chat = Watched(make_model)
    conversation, mine = chat.conversation, chat.conversation.settings
    others = [mine.but({"drafter": "prompt_lookup"}), mine.but({"controller": "off"}), mine.but({"temperature": 0.5})]
    for other in others:
        known, tokens = chat.known(), []
        for index, event in enumerate(conversation.reply(LONG if not chat.text else [*chat.text, 9, 9], 7)):
            if index in (3, 6, 9):
                conversation.change(other if index == 3 else mine)
            tokens += getattr(getattr(event, "round", None), "emitted", ())
        prompt = LONG if not chat.text else [*chat.text, 9, 9]
        chat.text = [*prompt, *tokens]
        conversation.change(mine)
        chat.say([*chat.text, 5])
        assert conversation.speculator.drafter is chat.drafter, "what it learnt was kept"
        _, given = known
        seen = [position for first, end in chat.drafter.given[given:] for position in range(first, end)]
        assert len(seen) == len(set(seen)), "nothing twice"
        chat.check(chat.known())


def test_replies_beside_the_chat_change_no_states_of_the_chat(make_model):
    chat = Watched(make_model)
    chat.say(LONG)
    for changes in ({"drafter": "prompt_lookup"}, {}):
        with chat.conversation.apart(changes) as apart:
            collect(apart.reply(LONG[5:30], 3))
    known = chat.known()
    chat.say([*chat.text, 8])
    chat.check(known)


def test_a_prompt_that_is_stopped_while_it_is_read_is_gone_on_with(make_model):
    chat = Watched(make_model)
    prompt = [(11 * i) % V for i in range(400)]
    asked = itertools.count()
    chat.say(prompt, cancelled=lambda: next(asked) >= 0)
    assert 0 < len(chat.drafter.tokens) < 400
    known = chat.known()
    chat.say(prompt)
    chat.check(known)


def test_what_has_to_be_read_again_is_not_said_to_be_reused(make_model):
    conversation = converse(make_model(), None, **{**TREE, "drafter": "prompt_lookup"})
    collect(conversation.reply(LONG, 7))
    assert collect(conversation.reply([*LONG, 4], 7)).begun.reused_tokens >= 39
    conversation.change(conversation.settings.but({"drafter": "stateful"}))
    assert collect(conversation.reply([*LONG, 5], 7)).begun.reused_tokens == 0
    assert collect(conversation.reply([*LONG, 6], 7)).begun.reused_tokens >= 39


def test_members_of_a_merge_see_the_states_of_their_own_layers(make_model):
    options = {"merge.of": "stateful,stateful2", "stateful.layer": 0, "stateful2.layer": 2}
    conversation = converse(make_model(), None, **{**TREE, "drafter": "merge", "method_options": options})
    said = collect(conversation.reply(LONG, 7))
    text = [*LONG, *said.tokens]
    for member, layer in zip(conversation.speculator.drafter.members, (0, 2), strict=True):
        assert member.tokens == text[: len(member.tokens)]
        assert len(member.tokens) >= len(text) - 1
        expected = true_states(make_model, member.tokens, layer)
        torch.testing.assert_close(torch.stack(member.states), expected, atol=2e-4, rtol=2e-4)
