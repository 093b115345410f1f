"""The suffix drafter continues what it has seen, as far as the match deserves, and remembers past replies."""

from __future__ import annotations

import math
import random

import pytest
import torch
from contracts.kit import (
    V,
    context_for,
    fixed_speculator,
    make_policy,
    plain_text,
    scripted_target,
    speak,
)
from indexes.operations import operations

from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters import suffix as suffix_trees
from specchat.drafters.parts import Parts
from specchat.indexes import suffix_draft
from specchat.indexes.native_suffix_tree import NativeSuffixTree
from specchat.indexes.suffix_draft import chance
from specchat.indexes.suffix_tree import SuffixTree
from specchat.models.backends.scripted import ScriptedModel
from specchat.trees import TREE_POLICIES

BIG = 5000
BUDGET = Budget(32, 32, 4)


@pytest.fixture(params=["C", "Python"], autouse=True)
def language(request, monkeypatch):
    """What the trees are written in, where a test does not say."""
    if request.param == "Python":
        monkeypatch.setattr(suffix_trees, "_compiled", lambda: False)
    elif not suffix_trees._compiled():
        pytest.skip("no compiler here")


in_python = pytest.mark.parametrize("language", ["Python"], indirect=True)
POLICIES = ["chain", "expansion", "best_first", "template"]


def suffix(**options):
    method = DRAFTERS["suffix"]
    return method.load()(method.make_options(options), Parts(scripted_target(BIG)))


def numbers(count, seed=0, below=BIG):
    generator = random.Random(seed)
    return [generator.randrange(below) for _ in range(count)]


def reciter(prompt, reply):
    """A target that answers every prompt that ends like this one with this reply, over and over."""

    def says(text):
        logits = torch.zeros(BIG)
        done = next(n for n in range(len(text)) if list(text[len(text) - n - len(prompt) : len(text) - n]) == prompt)
        logits[reply[done % len(reply)]] = 20.0
        return logits

    return ScriptedModel(BIG, says)


def grown(drafter, history, policy="best_first", budget=Budget(64, 64, 8)):  # noqa: B008
    context = context_for(vocab_size=BIG, prompt=history)
    drafter.start(history)
    tree = make_policy(TREE_POLICIES[policy]).grow(drafter, context, budget)
    return [tree.path_tokens(node) for node in range(1, len(tree))]


def test_it_continues_what_followed_before():
    assert grown(suffix(), [1, 2, 3, 4, 5, 6, 9, 1, 2, 3], "chain") == [[4], [4, 5], [4, 5, 6], [4, 5, 6, 9]]


def test_nothing_seen_before_is_nothing_proposed():
    assert grown(suffix(), [1, 2, 3, 4]) == []


@pytest.mark.parametrize("match", [1, 2, 3, 5])
def test_a_match_that_is_too_short_drafts_nothing(match):
    text = numbers(60)
    drafted = grown(suffix(min_match=3), [*text, BIG - 1, *text[20 : 20 + match]])
    assert len(drafted) == (match + 1 if match >= 3 else 0)


@pytest.mark.parametrize(("factor", "offset"), [(0.0, 2), (1.0, 0), (1.0, 1), (2.0, 3)])
@pytest.mark.parametrize("match", [1, 3, 10])
def test_a_draft_is_as_long_as_its_match_deserves(match, factor, offset):
    text = numbers(100)
    drafted = grown(suffix(factor=factor, offset=offset), [*text, BIG - 1, *text[20 : 20 + match]])
    assert len(drafted) == int(factor * match) + offset
    assert drafted[-1] == text[20 + match :][: len(drafted)]


def test_match_and_continuation_share_the_depth():
    text = numbers(100)
    drafted = grown(suffix(depth=16, factor=9.0), [*text, BIG - 1, *text[20:34]])
    assert len(drafted) == 14, "behind 14 matched tokens 2 have room: matching 2 of them leaves room for 14"


def test_unlikely_continuations_are_not_drafted():
    history = [*(token for last in range(10, 30) for token in (1, last)), 1]
    assert grown(suffix(min_probability=0.06, offset=20), history) == []
    assert len(grown(suffix(min_probability=0.04, offset=20), history)) > 0


def test_a_guess_claims_what_its_match_and_its_count_are_worth():
    drafter, history = suffix(offset=4), [7, 1, 2, 7, 1, 2, 7, 1, 3, 7, 1, 4, 9, 7, 1]
    drafter.start(history)
    guesses = drafter.propose(TokenTree(1, BIG), [ROOT], 8, context_for(vocab_size=BIG, prompt=history))[0]
    claims = [(guess.token, math.exp(guess.logprob)) for guess in guesses]
    assert claims == [(token, pytest.approx(chance(count, 4, 2))) for token, count in ((2, 2), (3, 1), (4, 1))]


@pytest.mark.parametrize("matched", [1, 2, 5, 20])
def test_a_claim_grows_with_match_and_count_and_is_never_more_than_the_share(matched):
    for followed in (1, 2, 3, 10, 1000):
        claims = [chance(count, followed, matched) for count in range(1, followed + 1)]
        assert claims == sorted(claims)
        assert all(0.0 < claim <= count / followed for count, claim in enumerate(claims, 1))
        assert chance(1, followed, matched) <= chance(1, followed, matched + 1)
        assert chance(followed, followed, matched) < chance(followed, followed, matched + 1)


def followers(text, run):
    """The tokens that followed a run, by counting."""
    places = (i + len(run) for i in range(len(text) - len(run)) if tuple(text[i : i + len(run)]) == run)
    return [text[place] for place in places]


def brute_force_score(text, match, limit, floor, depth):
    """Sum of path probabilities of the best `limit` continuations after the last `match` tokens, by counting."""
    run = tuple(text[len(text) - match :])
    values = {(): 1.0}
    frontier = [()]
    while frontier:
        path = frontier.pop()
        tokens = followers(text, (*run, *path))
        for token in set(tokens):
            value = values[path] * tokens.count(token) / len(tokens)
            if value >= floor and len(path) + 1 + match <= depth:
                values[(*path, token)] = value
                frontier.append((*path, token))
    best = sorted((value for path, value in values.items() if path), reverse=True)
    return sum(best[:limit])


@pytest.mark.parametrize("seed", range(12))
def test_the_match_with_the_largest_expected_score_is_drafted_from(seed):
    history = numbers(60, seed, below=4)
    drafter = suffix(depth=10, offset=2)
    paths = grown(drafter, history)
    tree = SuffixTree(10)
    tree.extend(history)
    scores = {
        match: brute_force_score(history, match, min(match + 2, 10 - match), 0.1, 10)
        for match, _ in tree.matches(history, 9)
    }
    assert any(
        score == pytest.approx(max(scores.values())) and score == pytest.approx(shares(history, match, paths))
        for match, score in scores.items()
    )


def shares(text, match, paths):
    """Sum of the probabilities of these paths after the last `match` tokens, by counting."""
    run, value = tuple(text[len(text) - match :]), {(): 1.0}
    for path in sorted(map(tuple, paths), key=len):
        tokens = followers(text, (*run, *path[:-1]))
        value[path] = value[path[:-1]] * tokens.count(path[-1]) / max(1, len(tokens))
    return sum(value.values()) - 1.0


def test_a_repeated_request_takes_more_than_eight_tokens_a_round():
    prompt, reply = numbers(12, 1), numbers(160, 2)
    drafter = suffix()
    lengths = []
    for _ in range(2):
        context = context_for(vocab_size=BIG, prompt=prompt)
        text, rounds = speak(fixed_speculator(reciter(prompt, reply), drafter, "best_first", BUDGET), 150, context)
        assert text == reply[:150]
        lengths.append(sum(len(round.emitted) for round in rounds) / len(rounds))
    assert lengths[0] < 1.1, "nothing repeats within the reply"
    assert lengths[1] > 8


@in_python
def test_a_start_in_a_long_repetitive_text_reads_every_token_once():
    short, long = ([token % 3 for token in range(count)] for count in (500, 4000))
    assert operations(suffix().start, long) < 1.2 * 8 * operations(suffix().start, short)
    assert operations(suffix().start, long) < 2 * operations(suffix().start, range(4000))


@in_python
def test_only_the_matches_with_room_for_more_are_looked_into(monkeypatch):
    """In a text of one token every length matches, and each could be drafted from."""
    drafter, history = suffix(), [5] * 2000
    drafter.start(history)
    continued = []
    follow = suffix_draft._continue
    monkeypatch.setattr(suffix_draft, "_continue", lambda place, *size: continued.append(size) or follow(place, *size))
    drafter.propose(TokenTree(5, BIG), [ROOT], 1, context_for(vocab_size=BIG, prompt=history))
    assert len(continued) == 1


def test_past_replies_are_forgotten_oldest_first():
    prompt = numbers(12, 1)
    drafter = suffix(remember=100)
    replies = [numbers(60, seed) for seed in (2, 3)]
    for reply in replies:
        context = context_for(vocab_size=BIG, prompt=prompt)
        speak(fixed_speculator(reciter(prompt, reply), drafter, "best_first", BUDGET), 60, context)
    drafter.start([BIG - 1])
    assert grown(drafter, [BIG - 1, *replies[0][:4]]) == []
    assert grown(drafter, [BIG - 1, *replies[1][:4]])[-1] == replies[1][4:9]


def test_a_history_that_goes_on_is_read_from_where_it_went_on(monkeypatch):
    read = []

    def count(kind):
        extend = kind.extend
        monkeypatch.setattr(kind, "extend", lambda tree, tokens: read.append(len(tokens)) or extend(tree, tokens))

    count(SuffixTree)
    count(NativeSuffixTree)
    drafter, history = suffix(), numbers(50)
    drafter.start(history)
    read.clear()
    drafter.start([*history, 1, 2, 3])
    assert sum(read) == 3
    read.clear()
    drafter.start([*history[:-1], 1])
    assert sum(read) == 50


def test_an_edited_history_is_forgotten_locally():
    drafter = suffix()
    drafter.start([1, 2, 3, 4, 5, 1, 2, 3])
    assert grown(drafter, [8, 9, 1, 2, 3]) == []


def test_nodes_that_others_proposed_are_matched_anew():
    history = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    drafter, context = suffix(), context_for(vocab_size=BIG, prompt=history)
    drafter.start(history)
    tree = TokenTree(2, BIG)
    own, other = drafter.propose(tree, [ROOT], 4, context)[0], 5
    assert [guess.token for guess in own] == [3]
    stranger = tree.add(ROOT, type(own[0])(other))
    assert [guess.token for guess in drafter.propose(tree, [stranger], 4, context)[0]] == [6]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
def test_the_text_is_the_targets_own(policy, sampling):
    method = DRAFTERS["suffix"]
    drafter, accepted = method.load()(method.options(), Parts(scripted_target(V))), 0
    for seed in (1, 1, 2):
        text, rounds = speak(
            fixed_speculator(scripted_target(), drafter, policy, BUDGET), 80, context_for(sampling, seed)
        )
        assert text == plain_text(scripted_target(), 80, sampling, seed)
        accepted += sum(round.accepted for round in rounds)
    assert accepted > 0
