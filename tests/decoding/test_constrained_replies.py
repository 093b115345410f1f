"""A reply under a constraint is what plain decoding writes under the same masks, in text and in law."""

from __future__ import annotations

import itertools
import re
from functools import cache

import pytest
import torch
from contracts.kit import (
    PROMPT,
    Always,
    Letters,
    V,
    collect,
    context_for,
    converse,
    make_policy,
    make_rule,
    scripted_draft,
    scripted_target,
    speak,
    target_says,
)
from contracts.text_laws import exact_laws, law_p_values
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.constraint import MOST_REFUSED, Constraint, ConstraintSource, compiled
from specchat.core.noise import Stream
from specchat.core.request import LIKELIEST
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.decoding.combinations import keeps_draws
from specchat.decoding.emission import Stop
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS, grammar
from specchat.drafters.grammar import WithGrammar, fitted
from specchat.drafters.parts import Parts
from specchat.errors import ConstraintError
from specchat.trees import TREE_POLICIES

LETTERS = Letters(V, eos_ids=(V - 1,))
LONG = ConstraintSource("regex", "[A-H]{3,9}IJKL[A-M]*(NOPQ|OPQR)[A-H]{2,5}")
SHORT = ConstraintSource("regex", "[A-H]{2,4}IJK[A-M]{1,4}(NOP|OPQ)[A-H]{2}")
"""Free, forced and alternative places, as in the long one."""
SAMPLINGS = {
    "greedy": {},
    "greedy with penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "warm": {"temperature": 0.8},
    "truncated": {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
}


def constrained(wanted=LONG, seed=7, begun=(), **settings):
    conversation = converse(scripted_target(), scripted_draft(), LETTERS, max_tokens=60, **settings)
    return collect(conversation.reply(PROMPT, seed, begun=begun, constraint=conversation.compile(wanted)))


@cache
def plainly(sampling, seed=7, wanted=LONG):
    """Plain decoding written down the long way: mask, law, draw, one token after the other."""
    context = context_for(sampling, seed)
    context.constraint = compiled(wanted, LETTERS, V)
    while context.history[-1] != V - 1 and len(context.history) < len(PROMPT) + 60:
        logits = target_says()(context.history).clone()
        logits[torch.from_numpy(~context.constraint.mask(()))] = -torch.inf
        law = context.law_after(TokenTree(context.root, V).freeze(), ROOT, logits)
        context.emit([law.draw(context.noise, Stream.TARGET, len(context.history))])
    return context.history[len(PROMPT) :]


@each_row("loop", ["pearl", "overlap", "mirror"])
def test_loops_that_draft_ahead_do_not_under_a_constraint(loop):
    found = constrained(drafter="draft_model", loop=loop)
    assert found.tokens == plainly(Sampling())
    assert found.ledger.draft_passes > 0


@each_row(
    ("drafter", "policy", "settings"),
    [
        pytest.param(drafter, [*TREE_POLICIES][(row + column) % len(TREE_POLICIES)], settings, id=f"{drafter}-{name}")
        for row, drafter in enumerate(DRAFTERS)
        for column, (name, settings) in enumerate(SAMPLINGS.items())
    ],
)
def test_speculation_never_changes_a_constrained_text(drafter, policy, settings):
    """tests/decoding/test_exactness.py tries every drafter with every policy, without a constraint."""
    said = constrained(SHORT, drafter=drafter, policy=policy, controller="fixed", **settings)
    assert said.tokens == plainly(Sampling(**settings), wanted=SHORT)
    assert said.ended.stop is Stop.END
    assert re.fullmatch(SHORT.text, said.text)


@each_row(("drafter", "policy"), [*zip(DRAFTERS, itertools.cycle(TREE_POLICIES), strict=False)])
def test_forced_text_is_guessed_beyond_the_depth_of_trees(drafter, policy):
    how = {"drafter": drafter, "policy": policy, "controller": "fixed", "nodes": 4, "depth": 2, "width": 2}
    forced = ConstraintSource("regex", "ABCDEFGHIJKL[A-M]{4}(NOPQ|OPQR)[A-H]{2,5}")
    said = constrained(forced, **how)
    assert said.tokens == constrained(forced, controller="off").tokens
    assert max(max(round.tree.depths) for round in said.rounds) >= 12
    assert len(said.rounds) < len(said.tokens) - 12 + 2
    assert all(len(round.tree) <= 2 * (4 + 12) for round in said.rounds)


LOSSY = [name for name, method in ACCEPTANCE_RULES.items() if not make_rule(method).lossless]


@pytest.mark.parametrize("rule", ["multi_step", "recursive", "block", "traversal", *LOSSY])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_rule_writes_what_the_constraint_allows(rule, temperature):
    if rule == "transfer" and not temperature:
        pytest.skip("refused: it compares laws, which are points there")
    drafter = "prompt_lookup" if rule == "nest" else "draft_model"
    for seed in range(5):
        said = constrained(seed=seed, rule=rule, drafter=drafter, controller="fixed", temperature=temperature)
        assert re.fullmatch(LONG.text, said.text) or said.ended.stop is Stop.LENGTH


def test_forced_spans_are_guessed_and_right():
    said = constrained(drafter="none", policy="chain", controller="fixed")
    guesses = [
        draw.guess for round in said.rounds for node in range(len(round.tree)) for draw in round.tree.draws(node)
    ]
    assert {guess.proposer for guess in guesses} == {"grammar"}
    assert said.ledger.accepted == said.ledger.drafted > 5
    alone = constrained(drafter="grammar", policy="chain", controller="fixed")
    assert [len(round.emitted) for round in alone.rounds] == [len(round.emitted) for round in said.rounds]


class Merging(Letters):
    """Writes BC as one token, 4."""

    def encode(self, text):
        return [4 if piece == "BC" else ord(piece) - ord("A") for piece in re.findall("BC|.", text)]


def test_guesses_and_their_forced_text_are_written_as_the_tokenizer_does():
    constraint = compiled(ConstraintSource("regex", "A+BCD"), Merging(6, eos_ids=(5,), texts={4: b"BC"}), 6)
    tree = TokenTree(0, 6)
    tree.add(tree.add(tree.add(ROOT, Guess(0)), Guess(1)), Guess(2))
    found = fitted(tree.freeze(), constraint, context_for(vocab_size=6), Budget(8, 8, 2))
    assert (found.tokens, found.parents) == ([0, 0, 4, 3], [-1, 0, 1, 2])


def test_no_forbidden_guess_costs_a_row():
    for policy in TREE_POLICIES:
        constraint = compiled(LONG, LETTERS, V)
        for round in constrained(drafter="draft_model", policy=policy, controller="fixed").rounds:
            for node in range(1, len(round.tree)):
                assert constraint.allows(round.tree.path_tokens(round.tree.parents[node]), round.tree.tokens[node])
            constraint.advance(round.emitted)


def test_guesses_that_the_constraint_forbids_are_told_with_the_nodes_they_would_have_followed():
    constraint, told = compiled(LONG, LETTERS, V), 0
    for round in constrained(drafter="draft_model", policy="best_first", controller="fixed").rounds:
        for one in round.refused:
            path = round.tree.path_tokens(one.parent)
            assert not constraint.allows(path, one.token)
            assert round.tree.child(one.parent, one.token) is None
            assert one.proposer
        told += len(round.refused)
        assert len(round.refused) <= MOST_REFUSED
        constraint.advance(round.emitted)
    assert told > 5
    conversation = converse(scripted_target(), scripted_draft(), LETTERS, max_tokens=1, controller="off")
    held = conversation.compile(ConstraintSource("regex", "[A-C]D"))
    (round,) = collect(conversation.reply(PROMPT, 7, shown=LIKELIEST, constraint=held)).rounds
    best = round.reading.best_after([ROOT], 10)[0]
    assert [one.token for one in round.refused] == [token for token in best if token > 2], "forbidden, though likely"
    assert not any(one.proposer for one in round.refused)


def test_a_reply_that_has_begun_goes_on_under_its_constraint():
    whole = constrained(seed=3, temperature=0.8)
    for cut in (1, 4, 9):
        assert constrained(seed=3, begun=whole.tokens[:cut], temperature=0.8).tokens == whole.tokens[cut:]
    with pytest.raises(ConstraintError, match="does not fit"):
        constrained(begun=[20])


# ------------------------------------------------------------------------------------------------------ laws

SMALL, END = 5, 4
TINY = "(A[BC]|B(A|CD?)|CC|D{1,3})D?"
TEXTS = {
    text for n in range(6) for text in map("".join, itertools.product("ABCD", repeat=n)) if re.fullmatch(TINY, text)
}
SMALL_LETTERS = Letters(SMALL, eos_ids=(END,))  # one table: llguidance's copy of it is kept
LENGTH = 3
WARM = Sampling(temperature=0.8)
BEGINNING = [1, 3, 1]


def masked_says(text):
    """The target's logits under the mask, which is worked out from the list of all texts."""
    reply = "".join("ABCDE"[token] for token in text[len(BEGINNING) :])
    written = reply.rstrip("E")
    allowed = {"ABCD".index(one[len(written)]) for one in TEXTS if one.startswith(written) and len(one) > len(written)}
    if reply != written:
        allowed = set()
    if written in TEXTS:
        allowed.add(END)
    logits = target_says(SMALL)(text).clone()
    logits[[token for token in range(SMALL) if token not in allowed]] = -torch.inf
    return logits


def small_constraint(made=Constraint):
    constraint = compiled(ConstraintSource("regex", TINY), SMALL_LETTERS, SMALL)
    constraint.__class__ = made
    return constraint


REPLIES = 300
"""So many show laws of draws that are not masked."""


def least_p(rule, policy, made=Constraint, count=REPLIES):
    method = DRAFTERS["draft_model"]
    flat = scripted_draft(SMALL, sharpness=0.5)  # so that its laws differ much where what is forbidden is taken away
    drafter = method.load()(method.make_options({}), Parts(scripted_target(SMALL), flat))
    parts = (make_policy(TREE_POLICIES[policy]), make_rule(ACCEPTANCE_RULES[rule]), Always(Budget(6, 2, 3)))
    texts, kinds, accepted = [], set(), 0
    for seed in range(count):
        context = context_for(WARM, seed, SMALL, BEGINNING)
        context.constraint = small_constraint(made)
        text, rounds = speak(Speculator(scripted_target(SMALL), WithGrammar(drafter), *parts), LENGTH, context)
        texts.append(text)
        accepted += sum(round.accepted for round in rounds)
        kinds |= {draw.guess.kind for round in rounds for draw in round.tree.draws(0)}
    assert accepted > 0.2 * count
    assert make_rule(ACCEPTANCE_RULES[rule]).wanted in kinds
    return min(law_p_values(texts, exact_laws(masked_says, BEGINNING, LENGTH, WARM, SMALL)).values())


EXACT = [
    (rule, policy)
    for rule in ("multi_step", "recursive")
    for policy in ("chain", "expansion", "best_first", "rsd_c", "rsd_s")
    if keeps_draws(TREE_POLICIES[policy], make_rule(ACCEPTANCE_RULES[rule]).wanted)
]


@pytest.mark.parametrize(
    ("rule", "policy"), [("follow", "best_first"), ("block", "expansion"), ("traversal", "expansion"), *EXACT]
)
def test_constrained_texts_are_distributed_as_the_masked_targets(rule, policy):
    many = policy == "expansion" and rule in ("multi_step", "recursive")
    assert least_p(rule, policy, count=REPLIES if many else 80) > 1e-4


@pytest.mark.parametrize("rule", ["multi_step", "recursive"])
def test_laws_of_draws_that_are_not_masked_are_caught(rule, monkeypatch):
    monkeypatch.setattr(grammar, "_without_forbidden", lambda q, mask: q)
    assert least_p(rule, "expansion", count=REPLIES) < 1e-7


class MaskForgotten(Constraint):
    """Wrong on purpose: the law behind drafted nodes is not masked."""

    def reading(self, tree, reading):
        masked = super().reading(tree, reading)
        after = masked.after
        masked.after = lambda node: after(node) if node == 0 else reading.after(node)
        return masked

    def advance(self, tokens):
        """Let what is forbidden pass, so that the texts can be looked at."""
        for token in tokens:
            if self.allows((), token):
                super().advance([token])


@pytest.mark.parametrize("rule", ["follow", "multi_step", "recursive", "block", "traversal"])
def test_a_mask_that_is_forgotten_at_some_nodes_is_caught(rule):
    assert least_p(rule, "expansion", MaskForgotten, count=60) < 1e-7


def test_both_kinds_of_draws_are_looked_at():
    assert {make_rule(ACCEPTANCE_RULES[rule]).wanted for rule, _ in EXACT} == {DrawKind.IID, DrawKind.WOR}
