"""The grammar of --compare: what was named is what runs, and a typing error is refused with the nearest word."""

from __future__ import annotations

import pytest

from specchat.bench.configurations import parse_configurations, plain_of
from specchat.bench.runner import parse_dtypes
from specchat.errors import UsageError
from specchat.settings import Settings

BASE = Settings().but({"nodes": 9, "policy": "chain", "drafter": "prompt_lookup"})


def test_auto_is_the_settings_as_they_are():
    (auto,) = parse_configurations("auto", BASE)
    assert auto.settings == BASE


def test_words_name_methods_in_order_and_keys_set_the_shape():
    (one,) = parse_configurations("draft_model:expansion:follow:fixed:width=3:depth=4", BASE)
    s = one.settings
    assert (s.drafter, s.policy, s.rule, s.controller) == ("draft_model", "expansion", "follow", "fixed")
    assert (s.width, s.depth, s.nodes) == (3, 4, 9)


def test_a_named_configuration_has_a_fixed_budget_unless_it_says_otherwise():
    (one,) = parse_configurations("prompt_lookup", BASE.but({"controller": "off"}))
    assert one.settings.controller == "fixed"
    assert not one.plain


def test_auto_takes_a_shape_too():
    small, large = parse_configurations("auto:nodes=2,auto:nodes=20", BASE)
    assert (small.settings.nodes, large.settings.nodes) == (2, 20)


def test_digits_go_on_with_the_value_before_them():
    one, two = parse_configurations("draft_model:expansion:expansion.widths=3,2,1, auto", BASE)
    assert one.settings.options_for("expansion") == {"widths": "3,2,1"}
    assert two.name == "auto"


def test_each_configuration_is_taken_once():
    assert len(parse_configurations("auto, auto ,auto", BASE)) == 1


def test_plain_is_the_same_settings_without_speculation():
    assert plain_of(BASE).plain
    assert plain_of(BASE).settings.but({"controller": BASE.controller}) == BASE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("promt_lookup", "did you mean 'prompt_lookup'"),
        ("atuo", "did you mean 'auto'"),
        ("prompt_lookup:chian", "did you mean 'chain'"),
        ("prompt_lookup:chain:folow", "did you mean 'follow'"),
        ("prompt_lookup:chain:follow:fixd", "did you mean 'fixed'"),
        ("prompt_lookup:chain:follow:fixed:more", "names more than"),
        ("prompt_lookup:node=4", "did you mean 'nodes'"),
        ("prompt_lookup:temperature=1", "cannot be set there"),
        ("prompt_lookup:nodes=x", "not a whole number"),
        ("prompt_lookup:nodes=-1", "outside its range"),
        ("nodes=4", "must begin with a drafter"),
        ("auto:chain", "no drafter"),
        (" , ", "names no configuration"),
    ],
)
def test_a_typing_error_is_refused_with_the_nearest(text, said):
    if text == "auto:chain":
        said = "no drafter is called 'auto'"
    with pytest.raises(UsageError) as caught:
        parse_configurations(text, BASE)
    assert said in str(caught.value)


def test_precisions_are_those_of_the_settings():
    assert parse_dtypes("float32, bfloat16,float32") == ("float32", "bfloat16")
    with pytest.raises(UsageError, match="did you mean 'bfloat16'"):
        parse_dtypes("bfloat61")
