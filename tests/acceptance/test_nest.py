"""NEST trusts copies by the ratio of their distances, copies spans, and says where every span stands in the text."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from acceptance.test_lossy_rules import judged, rule
from contracts.kit import PROMPT, Always, V, context_for, make_drafter, make_policy, plain_text, scripted_target, speak
from contracts.tiny_datastore import CHECKSUM, write_tiny_datastore

from specchat.config.datastore_files import ENDING, Datastores
from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.tree import STORED, Guess, TokenTree
from specchat.decoding.assemble import assemble
from specchat.decoding.combinations import check_settings
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.choice import choose
from specchat.drafters.parts import PairResources, Parts
from specchat.errors import CombinationError
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

GREEDY = Sampling()


def test_the_coefficient_is_the_published_sigmoid_of_the_ratio_of_distances():
    made = rule("nest", alpha=0.1, tau=0.1)
    for probabilities in ([0.6, 0.3], [0.9, 0.05], [0.2], [0.4, 0.4, 0.1]):
        distances = [-math.log(p) for p in (*probabilities, 1.0 - sum(probabilities))]
        ratio = min(distances) / max(distances)
        expected = 1.0 / (1.0 + math.exp(-(ratio - 0.1) / 0.1))
        assert made.coefficient(probabilities) == pytest.approx(expected)
    assert made.coefficient([0.95]) < 0.5 < made.coefficient([0.5])


def chain_of_copies(length, sure):
    """The root, then tokens 1, 2, 3, … copied from places 10, 11, 12, …"""
    tree, node = TokenTree(0, 9), 0
    for i in range(length):
        node = tree.add(node, Guess(i + 1, logprob=math.log(sure), source=10 + i))
    return tree


LIKELY_ELSEWHERE = [0.6, *[0.05] * 8]


@pytest.mark.parametrize(("gamma", "length"), [(0.0, 4), (0.05, 4), (0.5, 1), (2.0, 1)])
def test_a_trusted_span_goes_on_while_its_tokens_are_likely_enough(gamma, length):
    made = rule("nest", gamma=gamma, alpha=1.0, tau=0.01)  # copies weigh everything
    verdict = judged(made, chain_of_copies(4, 0.9), [LIKELY_ELSEWHERE] * 5, GREEDY)
    assert made.coefficient([0.9]) < 1e-6
    assert len(verdict.path) == 4, "each token is taken from the mixture where the span may not go on"
    spans = [i for i in range(1, 4) if made.stands(torch.tensor(LIKELY_ELSEWHERE), i + 1)]
    assert len(spans) == length - 1


def test_with_gamma_2_a_span_goes_on_with_the_likeliest_token_alone_and_with_0_with_any():
    p = torch.tensor([0.4, 0.35, 0.25, 0.0])
    assert [rule("nest", gamma=2.0).stands(p, token) for token in range(4)] == [True, False, False, False]
    assert all(rule("nest", gamma=0.0).stands(p, token) for token in range(4))


def test_a_span_that_the_target_finds_too_unlikely_ends_there():
    laws = [LIKELY_ELSEWHERE, [0.0, 0.0, 0.9, *[0.1 / 6] * 6], [1.0 - 8e-4, *[1e-4] * 8], LIKELY_ELSEWHERE]
    tree = TokenTree(0, 9)
    node = tree.add(0, Guess(1, logprob=math.log(0.97), source=10))
    node = tree.add(node, Guess(2, logprob=math.log(0.97), source=11))
    tree.add(node, Guess(3, logprob=math.log(0.3), source=12))  # a copy that is not trusted by itself
    assert judged(rule("nest"), tree, laws, GREEDY).path == (1, 2)
    again = TokenTree(0, 9)
    node = again.add(0, Guess(1, logprob=math.log(0.97), source=10))
    node = again.add(node, Guess(2, logprob=math.log(0.97), source=11))
    again.add(node, Guess(3, logprob=math.log(0.3), source=12))
    assert judged(rule("nest", gamma=0.0), again, laws, GREEDY).path == (1, 2, 3)


def test_a_token_that_does_not_follow_in_the_source_is_no_part_of_the_span():
    tree = TokenTree(0, 9)
    node = tree.add(0, Guess(1, logprob=math.log(0.97), source=10))
    tree.add(node, Guess(2, logprob=math.log(0.3), source=20))
    assert judged(rule("nest", gamma=0.0), tree, [LIKELY_ELSEWHERE] * 3, GREEDY).path == (1,)


def test_guesses_that_are_no_copies_are_judged_as_follow_does():
    tree = TokenTree(0, 9)
    tree.add(tree.add(0, Guess(0)), Guess(3))
    assert judged(rule("nest"), tree, [LIKELY_ELSEWHERE] * 3, GREEDY).path == (1,)


ALONE = ("prompt_lookup", {}, 20)
BEFORE_ANOTHER = ("cascade", {"of": "prompt_lookup(min_ngram=2)+suffix"}, 10)


def test_every_accepted_copy_from_a_datastore_equals_its_file(tmp_path):
    """Tokens of a file are copied one after the other, and each is said to stand where it does."""
    other = plain_text(scripted_target(), 60, GREEDY)
    texts = {"notes.txt": [5, 6, 7] * 8, "book.md": [*PROMPT, *other]}
    starts = [0, 1 + len(texts["notes.txt"])]
    write_tiny_datastore(tmp_path / f"a{ENDING}", list(texts.values()), V, names=list(zip(starts, texts, strict=True)))
    resources = PairResources(datastores=Datastores("tiny", lambda: CHECKSUM, tmp_path))
    drafter = Parts(scripted_target(), resources=resources).build(choose("datastore", Settings()))
    context = context_for(GREEDY, prompt=PROMPT)
    parts = (drafter, make_policy(TREE_POLICIES["chain"]), rule("nest"))
    _, rounds = speak(Speculator(scripted_target(), *parts, Always(Budget(6, 6, 2))), 40, context)
    copied, spans = 0, 0
    for round in rounds:
        sources = round.verdict.sources
        for token, source in zip(round.emitted, sources, strict=False):
            if source is not None and source >= STORED:
                name, place, before = drafter.stored_text(source, 4)
                text = texts[name]
                at = place - starts[list(texts).index(name)]
                assert text[at] == token
                assert list(before) == text[max(0, at - 4) : at]
                copied += 1
        spans += sum(None not in (one, two) and two == one + 1 for one, two in itertools.pairwise(sources))
    assert copied > 20
    assert spans > 10
    assert drafter.stored_text(STORED * 7, 4) is None


@pytest.mark.parametrize(("name", "options", "least"), [ALONE, BEFORE_ANOTHER], ids=["alone", "in a cascade"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8)], ids=["greedy", "warm"])
def test_every_accepted_copy_equals_the_text_at_its_source(sampling, name, options, least):
    prompt = PROMPT * 6
    context = context_for(sampling, prompt=prompt)
    parts = (make_drafter(DRAFTERS[name], **options), make_policy(TREE_POLICIES["chain"]), rule("nest"))
    text, rounds = speak(Speculator(scripted_target(), *parts, Always(Budget(6, 6, 2))), 80, context)
    copied = 0
    for round in rounds:
        assert len(round.verdict.sources) == round.accepted
        for node, token, source in zip(round.verdict.path, round.emitted, round.verdict.sources, strict=False):
            assert (source is not None) == ("prompt_lookup" in proposers(round.tree, node))
            if source is not None:
                assert context.history[source] == token
                copied += 1
    assert copied > least
    assert text != plain_text(scripted_target(), 80, sampling), "it is lossy: it wrote what the target would not have"


def proposers(tree, node):
    return {draw.guess.proposer for draw in tree.draws(tree.parents[node]) if draw.child == node}


def test_it_is_refused_where_guesses_do_not_say_what_they_copy():
    words = "rule 'nest' needs guesses .* drafter 'suffix' makes none; .* rule 'follow', or drafter 'prompt_lookup'"
    with pytest.raises(CombinationError, match=words):
        check_settings(Settings().but({"rule": "nest", "drafter": "suffix"}), has_draft_model=False)
    settings = Settings().but({"rule": "nest", "drafter": "prompt_lookup"})
    assert not assemble(settings, scripted_target(), None).rule.lossless


def test_a_cascade_says_what_it_copies_if_a_member_does():
    without = Settings().but({"rule": "nest", "drafter": "cascade"})
    with pytest.raises(
        CombinationError, match=r"drafter 'cascade' makes none; .* drafter 'prompt_lookup' or 'datastore'$"
    ):
        check_settings(without, has_draft_model=False)
    check_settings(without.but({"method_options": {"cascade.of": "suffix+prompt_lookup"}}), has_draft_model=False)
    merged = without.but({"drafter": "merge", "method_options": {"merge.of": "suffix+prompt_lookup"}})
    with pytest.raises(CombinationError, match="drafter 'merge' makes none"):
        check_settings(merged, has_draft_model=False)
