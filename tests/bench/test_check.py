"""The proof: it passes what is right, and fails when what it checks, or how it checks, is broken."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from racers import quick_pair, quick_settings

from specchat.acceptance import recursion
from specchat.acceptance.follow import Follow
from specchat.bench import check as proof
from specchat.bench.check_law import check_law, check_set_law
from specchat.bench.check_text import always_wrong, check_adversary, check_greedy, check_seeded, check_twin
from specchat.bench.checked_combination import FAILED, PASSED, SKIPPED, CheckedCombination, Effort
from specchat.core import context as contexts
from specchat.core.noise import Stream
from specchat.core.reading import HeadTensors
from specchat.core.round import Verdict
from specchat.core.tree import ROOT
from specchat.decoding.vocabulary import Vocabulary
from specchat.errors import UsageError
from specchat.models.backends.scripted import ScriptedModel, ScriptedVocabulary, random_says

EFFORT = Effort(prompts=2, tokens=20, seeds=2, sampled_tokens=12, twin_tokens=16, adversary_tokens=12, samples=150)
SAYS = random_says(ScriptedVocabulary().size, seed=2, memory=2, sharpness=1.0)
ALL = (check_greedy, check_seeded, check_twin, check_adversary, check_law)


class Endless(ScriptedVocabulary):
    """No token ends a reply, so that random text goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.eos_ids = frozenset()


def subject(target=None, exact: bool = True, vocabulary: Vocabulary | None = None, **settings) -> CheckedCombination:
    target = target or ScriptedModel(ScriptedVocabulary().size, SAYS)
    return CheckedCombination(target, None, vocabulary or Endless(), quick_settings(**settings), EFFORT, exact)


@pytest.mark.parametrize("check", ALL)
def test_what_is_right_passes(check):
    finding = check(subject())
    assert finding.status == PASSED, finding.detail


@pytest.mark.parametrize("check", ALL)
def test_the_scripted_pair_passes(check):
    pair = quick_pair()
    assert check(CheckedCombination.of(pair, quick_settings(), EFFORT)).status == PASSED


@pytest.mark.parametrize("rule", ["multi_step", "recursive"])
def test_rules_that_keep_the_law_pass_all_but_the_text_of_a_seed(rule):
    mine = subject(rule=rule, policy="expansion")
    assert check_seeded(mine).status == SKIPPED
    for check in (check_greedy, check_twin, check_adversary, check_law):
        finding = check(mine)
        assert finding.status == PASSED, finding.detail


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"controller": "off"}, "--controller fixed"),
        ({"nodes": 0}, "--nodes 16"),
        ({"drafter": "none"}, "--drafter prompt_lookup"),
        ({"controller": "goodput", "nodes": 0}, "--nodes 16"),
    ],
)
@pytest.mark.parametrize("check", [check_greedy, check_seeded])
def test_a_check_without_a_guess_is_skipped_and_says_what_to_set(check, settings, remedy):
    finding = check(subject(**settings))
    assert finding.status == SKIPPED
    assert finding.figures["drafted"] == 0
    assert finding.detail.startswith("no guess was made")
    assert remedy in finding.detail


def test_a_drafter_that_finds_nothing_is_named_as_the_reason():
    size = ScriptedVocabulary().size

    def nothing_twice(text):
        return torch.eye(size)[128 + len(text) % 128]  # bytes that no prompt has

    finding = check_greedy(subject(target=ScriptedModel(size, nothing_twice)))
    assert finding.status == SKIPPED
    assert "'prompt_lookup' found nothing" in finding.detail


def test_a_difference_without_a_guess_is_a_failure_all_the_same():
    mine = subject(controller="off")
    mine.__dict__["greedy_plain"] = [dataclasses.replace(text, tokens=text.tokens[1:]) for text in mine.greedy_plain]
    assert check_greedy(mine).status == FAILED


def gullible(self, tree, reading, context):
    """A broken rule: the first child always stands."""
    path, node = [], ROOT
    while children := tree.children(node):
        node = children[0]
        path.append(node)
    law = context.law_after(tree, node, reading.after(node))
    token = law.draw(context.noise, Stream.TARGET, context.position(tree, node))
    return Verdict(tuple(path), token, tree)


@pytest.mark.parametrize("check", [check_seeded, check_adversary, check_law])
def test_a_rule_that_believes_its_draft_fails(check, monkeypatch):
    monkeypatch.setattr(Follow, "judge", gullible)
    assert check(subject(drafter="prompt_lookup", temperature=0.9)).status == FAILED


def test_a_rule_that_believes_its_draft_fails_greedily(monkeypatch):
    mine = subject(target=quick_pair().target.model)
    assert mine.greedy_plain
    monkeypatch.setattr(Follow, "judge", gullible)
    finding = check_greedy(mine)
    assert finding.status == FAILED
    assert "first difference" in finding.detail


class Lopsided(ScriptedModel):
    """Says something else as soon as a pass has more than one row."""

    def read(self, tree, *arguments, **named):
        reading = super().read(tree, *arguments, **named)
        if len(tree) > 1:
            return dataclasses.replace(reading, said=HeadTensors(reading.logits.flip(-1)))
        return reading


def test_a_target_that_depends_on_the_size_of_the_pass_fails():
    mine = subject(target=Lopsided(ScriptedVocabulary().size, SAYS))
    assert check_adversary(mine).status == FAILED


def test_a_control_that_catches_nothing_fails_the_check():
    mine = subject(exact=False)
    mine.__dict__["moved"] = 1e9  # everything would count as a tie
    finding = check_greedy(mine)
    assert finding.status == FAILED
    assert "NOT caught" in finding.detail


def test_a_twin_that_is_none_fails():
    target = ScriptedModel(ScriptedVocabulary().size, SAYS)
    target.with_new_cache = lambda: ScriptedModel(target.vocab_size, random_says(target.vocab_size, seed=3))
    assert check_twin(subject(target=target)).status == FAILED


def test_a_biased_draw_fails_the_law(monkeypatch):
    drawn = contexts.draw_token

    def lazy(logits, sampling, noise, position, counts, path):
        if position % 2 and noise.seed % 3 == 0:
            return int(logits.argmax())
        return drawn(logits, sampling, noise, position, counts, path)

    mine = subject()
    monkeypatch.setattr(contexts, "draw_token", lazy)
    other = subject(target=ScriptedModel(ScriptedVocabulary().size, SAYS))
    results = [check_law(mine).status, check_law(other).status]
    assert results == [FAILED, FAILED]


def drawing(**settings) -> CheckedCombination:
    """A combination whose rule wants sampled draws, with a draft model that overrates the second token."""
    size = ScriptedVocabulary().size

    def overrates(text):
        logits = SAYS(text).clone()
        logits[logits.topk(2).indices[1]] += 4.0
        return logits

    chosen = quick_settings(
        **{"rule": "recursive", "policy": "expansion", "drafter": "draft_model", "depth": 2, **settings}
    )
    return CheckedCombination(
        ScriptedModel(size, SAYS), ScriptedModel(size, overrates), Endless(), chosen, EFFORT, True
    )


@pytest.mark.parametrize("drafter", ["draft_model", "merge", "several"])
@pytest.mark.parametrize("rule", ["multi_step", "recursive"])
def test_what_a_combination_itself_samples_is_tested_under_rules_that_promise_the_distribution(rule, drafter):
    members = {f"{drafter}.of": "prompt_lookup,draft_model"} if drafter != "draft_model" else {}
    finding = check_set_law(drawing(rule=rule, drafter=drafter, method_options=members))
    assert finding.status == PASSED, finding.detail
    assert finding.figures["drafted"] > 0


def test_a_combination_that_believes_its_draft_fails(monkeypatch):
    monkeypatch.setattr(recursion, "_chance", lambda left, g, token: 1.0)
    assert check_set_law(drawing()).status == FAILED


def test_a_combination_that_made_no_guess_is_skipped():
    finding = check_set_law(drawing(drafter="none", rule="multi_step"))
    assert finding.status == SKIPPED
    assert finding.detail.startswith("no guess was made")


def test_too_sure_a_target_is_skipped_not_passed():
    def certain(text):
        logits = torch.full((ScriptedVocabulary().size,), -1e9)
        logits[(text[-1] + 1) % 200] = 0.0
        return logits

    finding = check_law(subject(target=ScriptedModel(ScriptedVocabulary().size, certain)))
    assert finding.status == SKIPPED


def test_a_lossy_rule_is_not_asked_for_what_it_does_not_promise(monkeypatch):
    monkeypatch.setattr(Follow, "lossless", False)
    mine = subject()
    assert [check(mine).status for check in (check_greedy, check_adversary, check_law, check_set_law)] == [SKIPPED] * 4


def test_the_adversary_never_guesses_right():
    target = ScriptedModel(40, random_says(40))
    prompt, reply = [1, 2, 3], [7, 0, 39, 21]
    says = always_wrong(prompt, reply, target)
    for place, right in enumerate(reply):
        assert right not in says([*prompt, *reply[:place]]).topk(4).indices.tolist()


def test_a_target_on_another_machine_is_refused_before_it_is_loaded(monkeypatch):
    monkeypatch.setattr(proof, "load_pair", lambda *_: pytest.fail("nothing is loaded"))
    with pytest.raises(UsageError, match="run specchat check on that machine") as refused:
        proof.prove(quick_settings(target_at="ssh:box"), EFFORT)
    assert refused.value.exit_code == 2
