"""What a change did: which rounds stand against which, and when that is worth a word."""

from __future__ import annotations

from fake import SETTINGS, round_at, tokens_of
from hypothesis import given
from hypothesis import strategies as st

from specchat.tui.state.setting_effect import ENOUGH, SettingEffect
from specchat.tui.text.cells import width_of

WORDS = tokens_of("a b c d e f g h i j k l m n o p q r s t u v w x y z")


def effect_of(*accepted: int) -> SettingEffect:
    effect = SettingEffect()
    add(effect, *accepted)
    return effect


def add(effect: SettingEffect, *accepted: int) -> None:
    for index, count in enumerate(accepted):
        effect.add(round_at(index, WORDS, 1, count, 2))


def change(effect: SettingEffect, **settings: object) -> None:
    effect.changed(SETTINGS, {**SETTINGS, **settings})


def said(effect: SettingEffect, width: int = 60) -> str:
    return "\n".join("".join(text for text, _ in line) for line in effect.lines(width))


def test_the_last_rounds_before_stand_against_all_rounds_since():
    effect = effect_of(*[5] * 40, *[1] * 32)
    change(effect, width=5)
    add(effect, *[2] * 40)
    assert (effect.before.rounds, effect.before.tau) == (32, 2.0)
    assert (effect.since.rounds, effect.since.tau) == (40, 3.0)
    assert said(effect) == ("width 4 → 5 · 32 rounds before, 40 since\nτ 2.0 → 3.0 · 317 → 476 tok/s")


def test_until_there_are_enough_rounds_it_says_how_many_there_are():
    effect = effect_of(*[1] * 20)
    change(effect, width=5)
    assert said(effect).startswith("width 4 → 5 · since: 0 rounds\nbefore: τ 2.0 · ")
    add(effect, 3)
    assert "since: 1 round\n" in said(effect)
    add(effect, *[3] * (ENOUGH - 2))
    assert "→" not in said(effect).splitlines()[1]
    add(effect, 3)
    assert "τ 2.0 → 4.0" in said(effect)


def test_without_rounds_before_there_is_nothing_to_compare():
    effect = SettingEffect()
    change(effect, width=5)
    add(effect, *[3] * 20)
    assert effect.lines(60) == []


def test_changes_in_quick_succession_count_as_one():
    effect = effect_of(*[1] * 20)
    for before, now in ((4, 5), (5, 6), (6, 7)):
        effect.changed({**SETTINGS, "width": before}, {**SETTINGS, "width": now})
        add(effect, 5)
    assert effect.change == {"width": (4, 7)}
    assert (effect.before.rounds, effect.since.rounds) == (20, 1)


def test_a_change_that_is_taken_back_leaves_nothing_to_say():
    effect = effect_of(*[1] * 20)
    change(effect, width=5)
    effect.changed({**SETTINGS, "width": 5}, SETTINGS)
    assert effect.lines(60) == []
    assert effect.since.rounds == 20


def test_what_cannot_change_the_speed_is_no_change():
    effect = effect_of(*[1] * 20)
    change(effect, max_tokens=7, seed=3)
    assert effect.lines(60) == []


def test_an_option_of_a_method_is_called_by_its_name():
    effect = effect_of(*[1] * 20)
    change(effect, method_options={"suffix.depth": 9})
    assert said(effect).startswith("depth 9 · ")


@given(st.integers(10, 80), st.integers(0, 60), st.integers(0, 60))
def test_lines_never_grow_wider_than_there_is_room(width, before, since):
    effect = effect_of(*[2] * before)
    change(effect, repetition_penalty=1.05, presence_penalty=0.3)
    add(effect, *[3] * since)
    lines = effect.lines(width)
    assert bool(lines) == (before > 0)
    assert all(width_of(line) <= width for line in lines)
