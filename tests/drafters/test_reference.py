"""A predicted reply: proposed before the drafter's guesses, never part of the text unless the target says so."""

from __future__ import annotations

import pytest
from contracts.kit import PROMPT, Reply, V, collect, converse, scripted_draft, scripted_target
from rows import each_row

from specchat.core.tree import DrawKind, Guess
from specchat.drafters import DRAFTERS, REFERENCE
from specchat.drafters.reference import ExpectedReply, _joined

SEED, LENGTH = 7, 40


def written(reference: list[int], length: int = LENGTH, **settings: object) -> Reply:
    conversation = converse(scripted_target(), scripted_draft(), max_tokens=length, nodes=8, depth=4, **settings)
    return collect(conversation.reply(PROMPT, SEED, reference=reference))


def from_reference(reply: Reply) -> int:
    """Tokens of the reply that the reference proposed."""
    return sum(
        any(draw.child == node and draw.guess.proposer == REFERENCE for parent in (0, *round.verdict.path)
            for draw in round.tree.draws(parent))
        for round in reply.rounds
        for node in round.verdict.path
    )  # fmt: skip


@each_row("drafter", list(DRAFTERS))
@each_row("temperature", [0.0, 0.8])
def test_a_right_prediction_makes_longer_rounds_and_the_same_text(drafter: str, temperature: float) -> None:
    plain = written([], 28, drafter=drafter, temperature=temperature)
    guided = written(plain.tokens, 28, drafter=drafter, temperature=temperature)
    assert guided.tokens == plain.tokens
    assert guided.ledger.acceptance_length > 4
    assert guided.ledger.acceptance_length >= plain.ledger.acceptance_length
    assert from_reference(guided) >= 28 * 0.6


@pytest.mark.parametrize("policy", ["chain", "best_first"])
def test_a_wrong_prediction_changes_nothing_but_the_guesses(policy: str) -> None:
    plain = written([], policy=policy)
    misled = written([(token + 1) % V for token in plain.tokens], policy=policy)
    assert misled.tokens == plain.tokens
    assert from_reference(misled) < LENGTH / 4


def test_a_prediction_with_one_word_changed_is_followed_again_behind_it() -> None:
    plain = written([], drafter="none")
    changed = [*plain.tokens[:15], (plain.tokens[15] + 1) % V, *plain.tokens[16:]]
    assert from_reference(written(changed, drafter="none")) >= LENGTH * 0.5


@pytest.mark.parametrize("rule", ["multi_step", "recursive", "block", "traversal"])
def test_rules_that_weigh_draws_take_its_guesses_as_points(rule: str) -> None:
    """Those that judge whole branches never beside draws."""
    settings = {"drafter": "draft_model", "rule": rule, "policy": "expansion", "temperature": 0.8}
    guided = written(written([], **settings).tokens, **settings)
    nodes = [round.tree.draws(parent) for round in guided.rounds for parent in range(len(round.tree))]
    draws = [draw for node in nodes for draw in node]
    mixed = [node for node in nodes if len({draw.guess.kind is DrawKind.POINT for draw in node}) > 1]
    assert bool(mixed) == (rule in ("multi_step", "recursive"))
    kinds = {draw.guess.kind for draw in draws if draw.guess.proposer == REFERENCE}
    assert kinds == {DrawKind.POINT}
    assert any(draw.guess.kind is not DrawKind.POINT for draw in draws)


def test_sampled_draws_keep_their_order_before_the_expected_token() -> None:
    draws = [Guess(3, DrawKind.IID), Guess(1, DrawKind.IID), Guess(3, DrawKind.IID)]
    joined = _joined((5, 0.5), draws, 3)
    assert joined[:2] == draws[:2]
    assert (joined[2].token, joined[2].kind) == (5, DrawKind.POINT)
    assert list(_joined((5, 0.5), draws, 3, apart=True)) == draws, "for rules that judge whole branches"


def test_a_prediction_that_is_mostly_wrong_is_trusted_less() -> None:
    expected = ExpectedReply([1, 2, 3, 4] * 10)
    first = expected.after(())
    expected.emit([1, 9] * 10)
    later = expected.after((1,))
    assert first is not None
    assert later is None or later[1] < first[1]
