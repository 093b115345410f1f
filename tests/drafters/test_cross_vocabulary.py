"""A draft model with other tokens: texts go over as characters, guesses come back as the target's tokens."""

from __future__ import annotations

import math

import pytest
from contracts.kit import (
    Letters,
    V,
    context_for,
    fixed_speculator,
    scripted_draft,
    scripted_target,
    speak,
)
from rows import each_row
from two_vocabularies import COARSE, FINE, LETTERS, PAIRS, TEXT, Pieces, writer

from specchat.config.trained_drafters import NO_TRAINED
from specchat.core.budget import Budget
from specchat.core.sampling import Sampling, penalise
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.decoding.combinations import check_settings
from specchat.drafters import DRAFTERS
from specchat.drafters.options import CrossVocabularyOptions
from specchat.drafters.parts import PairResources, Parts
from specchat.errors import CombinationError
from specchat.settings import Settings


def drafter_of(own, other, draft=None):
    target = writer(own)
    parts = Parts(target, draft or writer(other), resources=PairResources(own, other))
    return target, DRAFTERS["cross_vocabulary"].load()(CrossVocabularyOptions(), parts)


SHAPE = ("chain", Budget(6, 6, 2))


def context_of(own, text=TEXT, sampling=None):
    return context_for(sampling, vocab_size=own.size, prompt=own.encode(text))


def spelt(table, tokens):
    return b"".join(map(table.token_bytes, tokens)).decode()


@pytest.mark.parametrize("policy", ["chain", "best_first"])
@pytest.mark.parametrize(("own", "other"), PAIRS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5)], ids=["greedy", "warm"])
def test_the_text_is_the_targets_own_and_most_guesses_stand(own, other, sampling, policy):
    target, drafter = drafter_of(own, other)
    context = context_of(own, sampling=sampling)
    emitted, rounds = speak(fixed_speculator(target, drafter, policy, SHAPE[1]), 60, context)
    prompt = own.encode(TEXT)
    plain = context_for(sampling, vocab_size=own.size, prompt=prompt)
    alone, _ = speak(fixed_speculator(writer(own), drafter, "chain", Budget(0, 0, 0)), 60, plain)
    assert emitted == alone
    if sampling.greedy:
        assert spelt(own, emitted) in 20 * TEXT
    assert sum(round.accepted for round in rounds) > 25
    assert sum(round.draft_passes for round in rounds) > 0


@each_row("policy", ["best_first", "graph"])
@each_row(("own", "other"), PAIRS)
@each_row(
    "sampling",
    [Sampling(), Sampling(temperature=0.7, top_p=0.9), Sampling(temperature=0.5, repetition_penalty=1.3)],
    ids=["greedy", "warm", "penalised"],
)
def test_compiled_code_grows_the_trees_that_level_by_level_grow(monkeypatch, own, other, sampling, policy):
    """With n-grams, with tokens that are several of the target's, and with penalties, which what is owed escapes."""
    replies = []
    for at_once in (True, False):
        target, drafter = drafter_of(own, other, writer(other, sharpness=2.0, other="the fox ran to the hen; "))
        if drafter._search is None:
            pytest.skip("there is no compiler")
        if not at_once:
            monkeypatch.setattr(drafter, "_search", None)
        context = context_of(own, sampling=sampling)
        _, rounds = speak(fixed_speculator(target, drafter, policy, Budget(9, 6, 3)), 40, context)
        trees = [(round.tree.tokens, round.tree.parents, round.draft_passes) for round in rounds]
        claims = [draw.guess.logprob for round in rounds for node in range(9) for draw in round.tree.draws(node)]
        replies.append((trees, claims))
    assert replies[0][0] == replies[1][0]
    assert replies[0][1] == pytest.approx(replies[1][1], abs=1e-6)
    assert len(replies[0][1]) > 40


def test_guesses_are_ordered_before_the_chat_chooses_among_them():
    """An n-gram is found last and is often the likeliest: truncation must see it first."""
    target, drafter = drafter_of(COARSE, LETTERS)
    sampling = Sampling(temperature=1.0, top_p=0.5)
    context = context_of(COARSE, TEXT[: TEXT.index(" hen")], sampling)
    fixed_speculator(target, drafter, *SHAPE).start(context.history)
    drafter._translation.learn(COARSE.encode(" hen")[0])
    [guesses] = drafter.propose(TokenTree(context.root, COARSE.size), [ROOT], 8, context)
    assert [COARSE.pieces[guess.token] for guess in guesses] == [b" hen"]


def test_a_draft_token_that_is_several_of_the_targets_needs_no_pass_for_the_others():
    target, drafter = drafter_of(LETTERS, COARSE)
    context = context_of(LETTERS, TEXT[: TEXT.index(" sat")])
    fixed_speculator(target, drafter, *SHAPE).start(context.history)
    tree = TokenTree(context.root, LETTERS.size)
    node, found, before = ROOT, [], drafter.passes
    for _ in range(4):
        guesses = drafter.propose(tree, [node], 1, context)[0]
        found.append(guesses[0].token)
        node = tree.add(node, guesses[0])
    assert spelt(LETTERS, found) == " sat"
    assert drafter.passes - before == 1


def test_draft_tokens_that_together_are_one_of_the_targets_become_it_once_the_target_used_it():
    """With the product of their probabilities, which the first of them then lacks."""
    target, drafter = drafter_of(COARSE, LETTERS)
    context = context_of(COARSE, TEXT[: TEXT.index(" hen")])

    def guessed():
        [guesses] = drafter.propose(TokenTree(context.root, COARSE.size), [ROOT], 8, context)
        return {COARSE.pieces[guess.token]: math.exp(guess.logprob) for guess in guesses}

    fixed_speculator(target, drafter, *SHAPE).start(context.history)
    before = guessed()
    assert b" hen" not in before, "the prompt does not have it"
    drafter._translation.learn(COARSE.encode(" hen")[0])
    after = guessed()
    assert after[b" hen"] == pytest.approx(0.8, abs=0.2)
    assert after[b" hen"] + after[b" "] == pytest.approx(before[b" "], rel=1e-6)


def test_ngrams_that_were_met_raise_what_is_accepted():
    lengths = []
    for learns in (False, True):
        target, drafter = drafter_of(COARSE, LETTERS)
        if not learns:
            drafter._translation.learn = lambda token: None
        _, rounds = speak(fixed_speculator(target, drafter, *SHAPE), 60, context_of(COARSE))
        lengths.append(sum(len(round.emitted) for round in rounds) / len(rounds))
    assert lengths[1] > lengths[0] + 0.5


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_probabilities_of_the_guesses_at_a_node_never_exceed_1_together(own, other):
    draft = writer(other, sharpness=2.0, other="the fox ran to the hen; ")
    target, drafter = drafter_of(own, other, draft)
    context = context_of(own)
    speculator = fixed_speculator(target, drafter, *SHAPE)
    speculator.start(context.history)
    for _ in range(20):
        tree = TokenTree(context.root, own.size)
        frontier = [ROOT]
        for _ in range(3):
            proposal = drafter.propose(tree, frontier, own.size, context) if frontier else []
            for guesses in proposal:
                assert sum(math.exp(guess.logprob) for guess in guesses) <= 1 + 1e-6
            frontier = [tree.add(n, g[0]) for n, g in zip(frontier, proposal, strict=True) if g]
        speculator.round(context)


def test_what_it_read_of_the_accepted_text_is_not_read_again():
    target, drafter = drafter_of(COARSE, FINE)
    draft = drafter._model
    context = context_of(COARSE)
    speculator = fixed_speculator(target, drafter, *SHAPE)
    speculator.start(context.history)
    written = draft.counters.rows
    rounds = [speculator.round(context) for _ in range(12)]
    emitted = spelt(COARSE, context.history)[len(TEXT) :]
    rejected = sum(round.tree.drafted - round.accepted for round in rounds)
    # Each draft token of the text once; besides these, guesses that fell, and the last word that was encoded anew.
    assert draft.counters.rows - written <= len(FINE.encode(emitted)) + 4 * rejected + 3 * len(rounds)


def test_a_node_that_another_drafter_proposed_is_gone_on_from():
    target, drafter = drafter_of(COARSE, FINE)
    context = context_of(COARSE, TEXT[: TEXT.index(" hen")])
    fixed_speculator(target, drafter, *SHAPE).start(context.history)
    tree = TokenTree(context.root, COARSE.size)
    node = tree.add(tree.add(ROOT, Guess(COARSE.encode(" hen")[0])), Guess(COARSE.encode(" ")[0]))
    guess = drafter.propose(tree, [node], 1, context)[0][0]
    assert COARSE.pieces[guess.token] == b"r"


def test_nothing_is_proposed_where_the_text_ends_within_a_character():
    halves = Pieces([])
    halves.pieces = [*halves.pieces, "é".encode()[:1], "é".encode()[1:]]
    parts = Parts(writer(halves), writer(COARSE), resources=PairResources(halves, COARSE))
    drafter = DRAFTERS["cross_vocabulary"].load()(CrossVocabularyOptions(), parts)
    prompt = [*halves.encode(TEXT), halves.size - 2]
    context = context_for(vocab_size=halves.size, prompt=prompt)
    drafter.start(prompt)
    assert drafter.propose(TokenTree(context.root, halves.size), [ROOT], 2, context) == [()]
    context.emit([halves.size - 1])
    assert len(drafter.propose(TokenTree(context.root, halves.size), [ROOT], 2, context)) == 1


OTHERS = {"": False}
"""Draft models with tokens that are not the target's."""


@pytest.mark.parametrize("drafter", ["draft_model", "merge"])
def test_drafters_that_need_the_targets_tokens_are_refused_by_name_and_pointed_here(drafter):
    settings = Settings().but({"drafter": drafter, "method_options": {"merge.of": "suffix,draft_model"}})
    check_settings(settings, True, NO_TRAINED)
    with pytest.raises(
        CombinationError, match=r"'draft_model' needs .* nearest that works: drafter 'cross_vocabulary'"
    ):
        check_settings(settings, True, NO_TRAINED, draft_models=OTHERS)
    check_settings(settings.but({"drafter": "cross_vocabulary"}), True, NO_TRAINED, draft_models=OTHERS)
    check_settings(settings.but({"drafter": "suffix"}), True, NO_TRAINED, draft_models=OTHERS)
    with pytest.raises(CombinationError, match="needs a draft model"):
        check_settings(settings.but({"drafter": "cross_vocabulary"}), False, NO_TRAINED)


def test_pairs_know_from_their_tables_whether_tokens_are_the_same():
    same = Letters()
    assert PairResources(same, same).same_tokens
    assert PairResources(same).same_tokens
    assert not PairResources(same, Letters()).same_tokens


class Shifted(Letters):
    """The letters under other numbers."""

    def token_bytes(self, token):
        return super().token_bytes((token + 1) % self.size)

    def encode(self, text):
        return [(token - 1) % self.size for token in super().encode(text)]


def test_guesses_follow_the_penalties_of_the_chat():
    own, other = Letters(), Shifted()
    draft = scripted_draft()
    parts = Parts(scripted_target(), draft, resources=PairResources(own, other))
    drafter = DRAFTERS["cross_vocabulary"].load()(CrossVocabularyOptions(), parts)
    sampling = Sampling(repetition_penalty=4.0)
    context = context_for(sampling)
    drafter.start(context.history)
    tree = TokenTree(context.root, V)
    (guesses,) = drafter.propose(tree, [ROOT], 4, context)
    twin = draft.with_new_cache()
    text = other.encode("".join(own.token_bytes(token).decode() for token in context.history))
    twin.prefill(text[:-1])
    said = twin.read(TokenTree(text[-1], V).freeze()).after(ROOT).roll(1)  # by the target's numbers
    expected = penalise(said, sampling, context.counts).argsort(descending=True)[:4].tolist()
    assert [guess.token for guess in guesses] == expected
    assert said.argsort(descending=True)[:4].tolist() != expected, "penalties would not show"


def test_a_head_ends_branches_that_the_target_would_refuse_and_the_text_stays():
    """A draft model that is surely wrong: only what was judged can tell."""
    own, other = COARSE, FINE
    target, wrong = writer(own), scripted_draft(vocab_size=other.size)
    texts, drafted = [], []
    for stop in (1.0, 0.5):
        parts = Parts(target, wrong, resources=PairResources(own, other))
        drafter = DRAFTERS["cross_vocabulary"].load()(CrossVocabularyOptions(stop=stop), parts)
        speculator = fixed_speculator(target, drafter, *SHAPE)
        text, rounds = speak(speculator, 120, context_of(own))
        texts.append(text)
        drafted.append(sum(round.tree.drafted for round in rounds[-30:]) / len(rounds[-30:]))
        kept = drafter.save_state()
        assert bool(kept) == (stop < 1.0)
    assert texts[0] == texts[1]
    assert drafted[1] < drafted[0] / 2, "the first guess of a round, and what one draft token stands for, stay"
    again = DRAFTERS["cross_vocabulary"].load()(CrossVocabularyOptions(stop=0.5), parts)
    again.restore_state(kept)
    assert again.save_state() == kept


def test_a_round_judges_nothing_of_a_tree_that_was_drafted_ahead_of_it():
    own, other = COARSE, FINE
    target = writer(own)
    parts = Parts(target, scripted_draft(vocab_size=other.size), resources=PairResources(own, other))
    drafter = DRAFTERS["cross_vocabulary"].load()(CrossVocabularyOptions(stop=0.5), parts)
    speculator, context = fixed_speculator(target, drafter, *SHAPE), context_of(own)
    speculator.start(context.history)
    judged = []
    drafter._stop.judge = lambda path, emitted: judged.append(emitted)
    observe = drafter.observe

    def with_a_tree_ahead(round):
        ahead = context_for(vocab_size=own.size, prompt=[*context.history, round.emitted[0]])
        drafter.propose(TokenTree(ahead.root, own.size), [ROOT], 2, ahead)
        observe(round)

    first = speculator.round(context)
    drafter.observe = with_a_tree_ahead
    speculator.round(context)
    assert judged == [first.emitted]
