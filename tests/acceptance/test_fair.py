"""The token that depends least on the identity terms of the prompt is taken; without such terms the likeliest."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from acceptance.test_lossy_rules import judged, rule, tree_of
from contracts.kit import Letters, context_for, plain_text, reply, scripted_target

from specchat.acceptance.fair import Counterfactual, Fair, divergence, least_changed
from specchat.acceptance.options import FairOptions
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.errors import UsageError
from specchat.models.backends.scripted import ScriptedModel

GREEDY = Sampling()


def js(p, q):
    """Jensen and Shannon's divergence of two whole laws."""
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    halves = [sum(a * math.log(a / m) for a, m in zip(law, middle, strict=True) if a > 0) for law in (p, q)]
    return sum(halves) / 2


def test_the_divergence_is_that_of_whether_the_token_follows():
    for p, q in itertools.product((0.0, 0.1, 0.5, 0.99, 1.0), repeat=2):
        assert divergence(p, q) == pytest.approx(js([p, 1 - p], [q, 1 - q]), abs=1e-12)
    assert divergence(0.3, 0.3) == 0.0


def test_of_all_likely_candidates_the_one_of_least_divergence_is_taken():
    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        p, changed = torch.softmax(torch.randn(2, 6, generator=generator, dtype=torch.float64), dim=-1)
        likely = [token for token in range(6) if p[token] >= 0.3 * p.max()]
        best = min(likely, key=lambda token: divergence(float(p[token]), float(changed[token])))
        assert least_changed(range(6), p, changed, 0.3) == best
        assert least_changed(range(6), p, p, 0.3) == int(p.argmax())


def test_with_one_prompt_it_is_greedy_among_what_is_proposed():
    laws = [[0.5, 0.3, 0.15, 0.05]] * 3
    assert judged(rule("fair"), tree_of([[1], [0]]), laws, GREEDY).path == (2,)
    assert judged(rule("fair"), tree_of([[1], [2]]), laws, GREEDY).emitted == (0,)


HE, SHE, PLAIN, WARM = 1, 2, 3, 4
"""Tokens of a small vocabulary: two identity terms, and two replies, of which one depends on them."""


def biased(text):
    """The target says WARM after one term and something else after the other; PLAIN is nearly as likely after both."""
    logits = torch.full((8,), -9.0)
    logits[WARM] = 1.0 if HE in text else -2.0
    logits[PLAIN], logits[5] = 0.8, (-2.0 if HE in text else 1.2)
    return logits


class Words(Letters):
    def encode(self, text):
        return {" he": [HE], " she": [SHE]}.get(text, [])


def fair(**options):
    return Fair(FairOptions(swap="he:she", **options), ScriptedModel(8, biased), Words(8))


def judge(made, prompt):
    target, context = ScriptedModel(8, biased), context_for(GREEDY, vocab_size=8, prompt=prompt)
    tree = TokenTree(context.root, 8)
    for token in (WARM, PLAIN, 5):
        tree.add(ROOT, Guess(token))
    target.prefill(prompt[:-1])
    return made.judge(tree.freeze(), target.read(tree), context).emitted[0]


def test_exchanging_the_identity_changes_the_targets_choice_and_not_the_fair_one():
    unswapped = Fair(FairOptions())
    assert [judge(unswapped, [0, who, 6]) for who in (HE, SHE)] == [WARM, 5]
    assert [judge(fair(), [0, who, 6]) for who in (HE, SHE)] == [PLAIN, PLAIN]


def test_a_root_that_is_itself_exchanged_is_read_as_the_other_term():
    assert [judge(fair(), [0, who]) for who in (HE, SHE)] == [PLAIN, PLAIN]


def test_terms_are_exchanged_both_ways_the_longest_first_and_the_rest_stays():
    class Table(Letters):
        def encode(self, text):
            return {" he": [HE], " she": [SHE], " he man": [HE, 7], " she boss": [6]}.get(text, [])

    other = Counterfactual(ScriptedModel(8, biased), Table(8), [("he", "she"), ("he man", "she boss")])
    assert other.exchanged([0, HE, 3, SHE, 0]) == [0, SHE, 3, HE, 0]
    assert other.exchanged([HE, 7, HE]) == [6, SHE]
    assert other.exchanged([6]) == [HE, 7]


def test_a_tree_costs_a_second_pass_only_where_the_prompt_has_a_term():
    target = ScriptedModel(8, biased)
    twin = target.with_new_cache()
    target.with_new_cache = lambda: twin
    made = Fair(FairOptions(swap="he:she"), target, Words(8))
    for prompt, passes in (([0, 6, 3], 0), ([0, HE, 3], 1)):
        before = twin.counters.passes
        judge(made, prompt)
        assert (twin.counters.passes > before) == bool(passes)


def test_a_whole_reply_without_such_terms_is_greedy_decoding():
    told = reply(scripted_target(), rule="fair", drafter="prompt_lookup", temperature=0.0, max_tokens=30, seed=3)
    assert told.tokens == plain_text(scripted_target(), 30, GREEDY, 3)


def test_a_term_without_its_other_is_refused():
    for swap in ("he", "he:she:it", ":she"):
        with pytest.raises(UsageError, match=r"fair\.swap = .* must be pairs of terms"):
            FairOptions(swap=swap)
