"""Drafters made of drafters: how they are written, which are refused, and that members do not disturb one another."""

from __future__ import annotations

import pytest
from contracts.kit import PROMPT, Letters, collect, converse, reply, scripted_draft, scripted_target
from contracts.table_plugins import listed

from specchat.core.noise import Noise
from specchat.core.tree import DrawKind
from specchat.decoding.combinations import check_settings
from specchat.drafters.choice import choose, choose_drafter
from specchat.drafters.members import Member, parse_members
from specchat.drafters.parts import Parts
from specchat.errors import CombinationError, UsageError
from specchat.settings import Settings


@pytest.fixture(autouse=True)
def tables():
    with listed():
        yield


def settings(**options):
    return Settings().but({"method_options": {key.replace("__", "."): value for key, value in options.items()}})


@pytest.mark.parametrize("text", ["suffix,token_recycling", "suffix + token_recycling", " suffix\ttoken_recycling,"])
def test_names_are_separated_by_commas_spaces_or_plus_signs(text):
    assert parse_members("merge.of", text) == (Member("suffix"), Member("token_recycling"))


def test_options_of_one_member_stand_in_parentheses_behind_its_name():
    found = parse_members("merge.of", "suffix(depth=8 factor=2.5),suffix(depth=64, factor=1)+draft_model")
    assert found == (
        Member("suffix", (("depth", "8"), ("factor", "2.5"))),
        Member("suffix", (("depth", "64"), ("factor", "1"))),
        Member("draft_model"),
    )


def test_a_member_may_be_a_wrapper_with_members_of_its_own():
    (outer,) = parse_members("x.of", "merge(of=suffix(depth=8)+prompt_lookup sure=0.5)")
    assert dict(outer.given) == {"of": "suffix(depth=8)+prompt_lookup", "sure": "0.5"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "merge.of = '' names no drafter"),
        (" , ", "names no drafter"),
        ("suffix(", "parenthesis without its partner"),
        ("suffix)", "parenthesis without its partner"),
        ("suffix(depth=8))", "parenthesis without its partner"),
        ("(depth=8)", "must be written NAME"),
        ("suffix(depth=8)x", "must be written NAME"),
        ("suffix(depth)", "'depth' in 'suffix\\(depth\\)' must be written OPTION=VALUE"),
        ("suffix(=8)", "must be written OPTION=VALUE"),
        ("suffix(depth=8 depth=9)", "sets depth twice"),
    ],
)
def test_what_names_no_members_is_refused_in_one_line(text, words):
    with pytest.raises(UsageError, match=words) as refused:
        check_settings(settings(merge__of=text), has_draft_model=True)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sufix", "no drafter is called 'sufix'; did you mean 'suffix'"),
        ("suffix(deph=8)", "suffix has no option 'deph'; did you mean 'depth'"),
        ("suffix(depth=1)", "suffix.depth = 1 is outside its range: 2 to 256"),
        ("suffix,prompt_lookup(min_ngram=5)", "prompt_lookup.min_ngram = 5 is above prompt_lookup.max_ngram = 4"),
        ("suffix,suffix(depth=64)", "merge names suffix twice with the same options"),
    ],
)
def test_members_are_checked_before_any_is_built_also_while_the_wrapper_is_not_in_use(text, words):
    for drafter in ("merge", "prompt_lookup"):
        with pytest.raises(UsageError, match=words):
            check_settings(settings(merge__of=text).but({"drafter": drafter}), has_draft_model=True)


def test_options_behind_a_name_come_before_those_of_the_settings():
    chosen = choose("merge", settings(merge__of="suffix(depth=8)+suffix", suffix__depth=32, suffix__factor=2.0))
    assert [(member.options.depth, member.options.factor) for member in chosen.members] == [(8, 2.0), (32, 2.0)]


@pytest.mark.parametrize(
    ("options", "circle"),
    [
        ({"merge__of": "suffix,merge"}, "merge → merge"),
        ({"merge__of": "suffix,first", "first__of": "merge"}, "merge → first → merge"),
        ({"merge__of": "first(of=silent)", "silent__of": "prompt_lookup+first"}, "first → silent → first"),
    ],
)
def test_wrappers_that_name_each_other_are_refused_with_the_circle(options, circle):
    with pytest.raises(UsageError, match=f"a drafter cannot be made of itself: {circle}"):
        check_settings(settings(**options).but({"drafter": "merge"}), has_draft_model=True)


def test_a_wrapper_promises_what_it_declares_and_not_what_its_members_promise():
    drawing = settings(first__of="draft_model", silent__of="draft_model").but(
        {"temperature": 0.8, "rule": "multi_step"}
    )
    check_settings(drawing.but({"drafter": "first"}), has_draft_model=True)
    with pytest.raises(CombinationError, match="drafter 'silent' with its options proposes points"):
        check_settings(drawing.but({"drafter": "silent"}), has_draft_model=True)
    assert choose("merge", settings(merge__of="suffix+silent", silent__of="draft_model")).draw_kinds == {DrawKind.POINT}


def test_members_of_one_name_sample_with_noise_of_their_own_so_their_draws_keep_their_kinds():
    chosen = choose("merge", settings(merge__of="draft_model+first", first__of="prompt_lookup+draft_model"))
    assert DrawKind.IID in chosen.draw_kinds
    one, wrapper = Parts(scripted_target(), scripted_draft()).build(chosen).members
    noises = [member._noise(Noise(7)) for member in (one, wrapper.members[1])]
    assert noises[0] != noises[1]


def test_a_change_of_a_members_own_options_is_another_drafter():
    one, other = (settings(merge__of=f"suffix(depth={depth})").but({"drafter": "merge"}) for depth in (8, 9))
    assert choose_drafter(one) != choose_drafter(other)
    assert choose_drafter(one) == choose_drafter(one.but({"method_options": {"suffix.depth": 12}}))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_one_drafter_may_be_a_member_twice_and_each_is_named_and_trusted_apart(temperature):
    options = {"merge.of": "draft_model(drawing=top)+draft_model(drawing=coupled)+suffix", "merge.sure": 1.0}
    asked = {"temperature": temperature, "policy": "best_first", "nodes": 8, "depth": 3, "width": 4, "max_tokens": 60}
    chat = converse(scripted_target(), scripted_draft(), Letters(), drafter="merge", method_options=options, **asked)
    said = collect(chat.reply(PROMPT, 7))
    assert said.tokens == reply(scripted_target(), controller="off", temperature=temperature, max_tokens=60).tokens
    proposers = {d.guess.proposer for r in said.rounds for n in range(len(r.tree)) for d in r.tree.draws(n)}
    names = {name for proposer in proposers for name in proposer.split("+")}
    assert names == {"draft_model 1", "draft_model 2", "suffix"}
    assert said.ledger.accepted > 0


def test_members_that_use_the_draft_model_have_a_cache_each():
    options = {"merge.of": "draft_model(drawing=top)+first(of=draft_model)"}
    chat = converse(scripted_target(), draft := scripted_draft(), drafter="merge", method_options=options)
    first, second = chat.speculator.drafter.members
    assert first._model is draft
    assert second.members[0]._model is not draft
    assert second.members[0]._model.vocab_size == draft.vocab_size
