"""A datastore's drafter: the longest match comes first, matches share the probability, their reliability is learnt."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from contracts.kit import (
    PROMPT,
    V,
    context_for,
    converse,
    fixed_speculator,
    plain_text,
    scripted_target,
    speak,
)
from contracts.tiny_datastore import CHECKSUM, write_tiny_datastore

from specchat.config.datastore_files import ENDING, Datastores
from specchat.core.budget import Budget
from specchat.core.reading import HeadTensors, Reading
from specchat.core.round import Round, Verdict
from specchat.core.sampling import Sampling
from specchat.core.states import TextStates
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.decoding.combinations import check_settings
from specchat.drafters.choice import choose
from specchat.drafters.parts import PairResources, Parts
from specchat.errors import CombinationError, StoreError
from specchat.settings import Settings


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def stores(folder):
    return Datastores("tiny", lambda: CHECKSUM, folder)


def build(folder, *texts, options=None):
    """A drafter over a datastore of these texts."""
    write_tiny_datastore(folder / f"a{ENDING}", texts, V)
    settings = Settings().but({"method_options": options or {}})
    parts = Parts(scripted_target(V), resources=PairResources(datastores=stores(folder)))
    return parts.build(choose("datastore", settings))


def ask(drafter, history, *path, width=4):
    """(token, probability, proposer) of the guesses after a path below the last token."""
    context, tree = context_for(prompt=history), TokenTree(history[-1], V)
    drafter.start(history)
    nodes = [ROOT]
    for token in path:
        nodes.append(tree.add(nodes[-1], Guess(token)))
    said = [drafter.propose(tree, [node], width, context)[0] for node in nodes]
    return [(guess.token, round(math.exp(guess.logprob), 4), guess.proposer) for guess in said[-1]]


def emit(drafter, history, *emitted):
    """A plain round in which the target said this, after the drafter was asked."""
    tree = TokenTree(history[-1], V).freeze()
    reading = Reading((0,), HeadTensors(torch.zeros(1, V)), frozenset({0}))
    drafter.propose(tree, [ROOT], 4, context_for(prompt=history))
    verdict = Verdict((), emitted[0], tree)
    drafter.observe(Round(0, len(history), history, Budget(8, 3, 2), tree, reading, verdict, tuple(emitted)))


def test_a_long_match_in_the_datastore_comes_before_a_short_one_in_the_text(folder):
    drafter = build(folder, [5, 6, 7, 8, 9])
    said = ask(drafter, [7, 4, 5, 6, 7])
    # In the store 5 6 7 (3 tokens, trusted 3/5) is followed by 8; in the text 7 (1 token, trusted 1/2) by 4.
    assert said == [(8, 0.6, "datastore"), (4, 0.2, "datastore text")]


def test_of_matches_of_one_length_the_texts_is_heard_first(folder):
    drafter = build(folder, [6, 7, 9])
    assert ask(drafter, [6, 7, 4, 2, 6, 7])[0] == (4, round(2 / 3 + 1 / 3 * 1 / 2 * 1 / 2, 4), "datastore text")


def test_a_match_shares_its_trust_by_count(folder):
    drafter = build(folder, [6, 7, 9, 6, 7, 9, 6, 7, 9, 6, 7, 8])
    assert ask(drafter, [6, 7]) == [(9, 0.375, "datastore"), (8, 0.125, "datastore")]


def test_equal_tokens_of_several_matches_add_up(folder):
    drafter = build(folder, [7, 4, 1])
    (guess,) = ask(drafter, [7, 4, 7])
    assert guess == (4, round(1 / 2 + 1 / 2 * 1 / 3, 4), "datastore text")


def test_below_its_own_guess_the_match_goes_on_and_elsewhere_another_is_found(folder):
    drafter = build(folder, [5, 6, 7, 8, 9], [6, 1, 2])
    assert ask(drafter, [5, 6], 7)[0][0] == 8
    assert ask(drafter, [5, 6], 7, 8)[0][0] == 9
    assert ask(drafter, [5, 6], 1)[0][0] == 2
    assert ask(drafter, [5, 6], 3) == []


def test_trust_follows_what_was_right(folder):
    drafter = build(folder, [5, 6, 7, 8])
    before = ask(drafter, [5, 6])[0][1]
    for _ in range(8):
        drafter.start([5, 6])
        emit(drafter, [5, 6], 7)
    trusted = ask(drafter, [5, 6])[0][1]
    for _ in range(40):
        drafter.start([5, 6])
        emit(drafter, [5, 6], 3)
    assert ask(drafter, [5, 6])[0][1] < before < trusted


def test_what_was_emitted_is_matched_too(folder):
    drafter = build(folder, [20, 21])
    assert ask(drafter, [1, 2, 3]) == []
    history = [1, 2, 3]
    drafter.start(history)
    emit(drafter, history, 4, 1, 2)
    context = context_for(prompt=[1, 2, 3, 4, 1, 2])
    (said,) = drafter.propose(TokenTree(2, V), [ROOT], 4, context)
    assert [guess.token for guess in said] == [3]


@pytest.mark.parametrize("policy", ["chain", "best_first", "template"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
def test_the_text_is_the_targets_own_and_a_store_of_the_same_text_drafts_nearly_all_of_it(folder, policy, sampling):
    text = plain_text(scripted_target(), 100, sampling)
    budget = Budget(8, 4, 2)
    written, rounds = speak(
        fixed_speculator(scripted_target(), build(folder, [*PROMPT, *text]), policy, budget), 100, context_for(sampling)
    )
    assert written == text
    other, more = speak(
        fixed_speculator(scripted_target(), build(folder, [0, 1]), policy, budget), 100, context_for(sampling)
    )
    assert other == text
    assert len(rounds) < 0.6 * len(more)


# ------------------------------------------------------------------------------------------ which datastore


def test_the_newest_datastore_with_the_targets_tokens_is_taken(folder):
    write_tiny_datastore(folder / f"old{ENDING}", [[1, 2]], V, made="2026-01-01")
    write_tiny_datastore(folder / f"new{ENDING}", [[1, 2]], V, made="2026-02-01")
    write_tiny_datastore(folder / f"strange{ENDING}", [[1, 2]], V, vocabulary="cd" * 32, made="2026-03-01")
    (folder / f"damaged{ENDING}").write_bytes(b"nothing")
    assert stores(folder).choose().name == "new"
    assert stores(folder).choose("old").name == "old"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("strange", "holds tokens of tiny, which are not those of tiny; nearest that works: datastore.store = 'here'"),
        ("damaged", "cannot be used: .*damaged.* is not a datastore"),
        ("her", "names no datastore; did you mean 'here'"),
    ],
)
def test_a_datastore_that_cannot_be_used_is_refused_by_name(folder, wanted, words):
    write_tiny_datastore(folder / f"here{ENDING}", [[1, 2]], V)
    write_tiny_datastore(folder / f"strange{ENDING}", [[1, 2]], V, vocabulary="cd" * 32)
    (folder / f"damaged{ENDING}").write_bytes(b"nothing")
    settings = Settings().but({"drafter": "datastore", "method_options": {"datastore.store": wanted}})
    with pytest.raises(CombinationError, match=words) as refused:
        check_settings(settings, has_draft_model=False, datastores=stores(folder))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("drafter", ["datastore", "merge"])
def test_without_a_datastore_the_drafter_is_refused_before_anything_is_built(folder, drafter):
    chat = converse(scripted_target(), resources=PairResources(datastores=stores(folder)))
    wanted = {"drafter": drafter, "method_options": {"merge.of": "suffix,datastore"}}
    with pytest.raises(CombinationError, match=r"none is here; `specchat datastore build`.*nearest.*'suffix'"):
        chat.change(chat.settings.but(wanted))
    with pytest.raises(CombinationError, match="needs a datastore"):
        converse(scripted_target(), resources=PairResources(), drafter="datastore")


def test_a_damaged_body_is_refused_in_one_line_when_the_drafter_is_built(folder):
    file = write_tiny_datastore(folder / f"a{ENDING}", [[1, 2, 3]], V)
    file.write_bytes(file.read_bytes()[:-2] + b"\x00\x01")
    with pytest.raises(StoreError, match="is damaged"):
        converse(scripted_target(), resources=PairResources(datastores=stores(folder)), drafter="datastore")


def with_states(folder, target="tiny", width=V, layer=0):
    """A drafter over two texts in which token 4 is followed by other tokens, with a state of each of its own."""
    texts = [[1, 2, 3, 4, 5, 6, 7, 0, 1], [*[8, 4, 5] * 4], [2, 9, 9, 4, 8, 1, 6, 3]]
    count = sum(len(text) + 1 for text in texts)
    states = np.random.default_rng(3).normal(size=(count, width)).astype(np.float16)
    place = count - len(texts[2]) + 1  # of the token before the 4 of the last text
    names = [(0, "one.txt"), (len(texts[0]) + 1, "two.txt"), (count - len(texts[2]) - 1, "three.txt")]
    write_tiny_datastore(folder / f"a{ENDING}", texts, V, names=names, states=states, layer=layer)
    resources = PairResources(datastores=Datastores(target, lambda: CHECKSUM, folder))
    return Parts(scripted_target(V), resources=resources).build(choose("datastore", Settings())), states[place]


def said_of(drafter, history, state, *path):
    """(token, who says so, its file) of the best guess after a path, where the target was in this state."""
    drafter.start(history)
    sink = drafter.hidden_state_sink
    sink.take(TextStates(0, tuple(history[:-1]), {0: torch.tensor(np.tile(state, (len(history) - 1, 1))).float()}))
    tree, node = TokenTree(history[-1], V), ROOT
    for token in path:
        drafter.propose(tree, [node], 4, context_for(prompt=history))
        node = tree.add(node, Guess(token))
    best, *_ = drafter.propose(tree, [node], 4, context_for(prompt=history))[0]
    return best.token, best.proposer, drafter.stored_text(best.source, 2)


def test_the_place_with_a_like_state_is_heard_beside_matches_and_followed_in_its_file(folder):
    """Words before the root that stand nowhere: the lookup says what mostly follows it, the state says where we are."""
    drafter, state = with_states(folder)
    history = [7, 7, 7, 4]
    token, who, (name, _, before) = said_of(drafter, history, state)
    assert (token, who, name, list(before)) == (8, "datastore states", "three.txt", [9, 4])
    token, who, (name, _, before) = said_of(drafter, history, state, 8)
    assert (token, name, list(before)) == (1, "three.txt", [4, 8])
    assert said_of(drafter, history, -state)[0] == 5, "the control: another state"
    assert said_of(drafter, [7, 7, 7, 6], state)[0] in (7, 3), "what follows another token than the root is not heard"


def test_states_of_another_target_are_not_compared(folder):
    assert with_states(folder)[0].hidden_state_sink is not None
    assert with_states(folder, target="other")[0].hidden_state_sink is None
    assert with_states(folder, width=V + 1)[0].hidden_state_sink is None
    assert with_states(folder, layer=1)[0].hidden_state_sink is None, "after a layer that the target has not"


def test_a_state_that_is_not_that_of_the_token_before_the_root_is_not_used(folder):
    drafter, state = with_states(folder)
    history = [7, 7, 7, 4]
    assert said_of(drafter, history, state)[0] == 8
    longer = [*history, 7, 4]
    drafter.start(longer)
    (guesses,) = drafter.propose(TokenTree(4, V), [ROOT], 4, context_for(prompt=longer))
    assert guesses
    assert "datastore states" not in {guess.proposer for guess in guesses}
