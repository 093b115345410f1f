"""A race takes events and says which commands to send next; its result claims no more than the events show."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from specchat.engine.client.race import Race, race_result, refuse_plain, settings_line
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Compare, Generate, Message
from specchat.engine.protocol.round_parts import Piece, Timings, Tree, Verdict
from specchat.errors import UsageError
from specchat.settings import OPTIONS
from specchat.tui.text import numbers

SETTINGS: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()}
LOSS = ev.Losslessness(True, "the target's own draw decides")
MESSAGES = [Message("user", "hi")]


def race_of(**more: Any) -> Race:
    return Race(MESSAGES, 7, itertools.count(1), **more)


def sides(command: Any) -> list[Generate]:
    """A command for two replies as one for each, in their order."""
    return [command, Generate(command.beside.id, command.messages, command.seed, command.beside.apart)]


def begun(command: Generate, loss: ev.Losslessness = LOSS, **settings: Any) -> ev.Started:
    return ev.Started(command.id, MESSAGES, 9, 8, 7, SETTINGS | settings | (command.apart or {}), loss, "smol")


def round_of(command: Generate, tokens: list[int], at_s: float, index: int = 0) -> ev.RoundDone:
    count = len(tokens)
    tree = Tree(list(range(count)), [-1, *range(count - 1)], ["x"] * count, [], [None] * count)
    pieces = [Piece(token, f"<{token}>", "target") for token in tokens]
    verdict = Verdict(list(range(1, count)), tokens[-1], "x", -0.1, ["accepted"] * count)
    return ev.RoundDone(
        command.id, index, at_s, 9, {"nodes": count}, tree, verdict, pieces, Timings(0.0, 0.1, 0.0)
    )  # fmt: skip


def ended(command: Generate, at_s: float, stop: ev.StopReason = "length") -> ev.Finished:
    stats = ev.Stats(1, 1, 0, 0, 1.0, 1.0, 0.0, 0.5, 0.0, 0.1, 0.0)
    return ev.Finished(command.id, stop, "", stats, at_s)


def held(plain: list[int], speculative: list[int], loss: ev.Losslessness = LOSS, **settings: Any) -> tuple[Race, Any]:
    """A race up to its last heat's end: plain one token a round, speculation all in one."""
    race = race_of()
    command: Any = race.begin()
    for side in sides(command):
        race.hear(begun(side))
        command = race.hear(ended(side, 1.0))
    one, other = sides(command)
    race.hear(begun(one, loss, **settings))
    race.hear(begun(other, loss, **settings))
    race.hear(round_of(other, speculative, 0.6))
    for place, token in enumerate(plain):
        race.hear(round_of(one, [token], 0.6 + 0.1 * place, place))
    race.hear(ended(other, 0.6))
    return race, race.hear(ended(one, 0.5 + 0.1 * len(plain)))


def test_both_sides_warm_up_and_then_write_by_turns():
    race = race_of(changes={"max_tokens": 64})
    warming: Any = race.begin()
    raced: Any = [race.hear(ended(side, 1.0)) for side in sides(warming)][-1]
    assert [command.seed for command in (warming, raced)] == [7, 7]
    assert [side.apart for command in (warming, raced) for side in sides(command)] == [
        {"max_tokens": 8, "controller": "off"}, {"max_tokens": 8},
        {"max_tokens": 64, "controller": "off"}, {"max_tokens": 64},
    ]  # fmt: skip
    assert len({side.id for command in (warming, raced) for side in sides(command)}) == 4


def test_the_sides_rounds_may_come_in_any_order():
    race = race_of(warm_up=False, order=("speculative", "plain"))
    fast, plain = sides(race.begin())
    for event in (begun(fast), begun(plain), round_of(fast, [1, 2], 0.6), round_of(plain, [1], 0.6)):
        race.hear(event)
    assert (race.plain.tokens, race.speculative.tokens, race.running) == ([1], [1, 2], "plain")
    race.hear(round_of(fast, [3], 0.7, 1))
    assert (race.speculative.tokens, race.running) == ([1, 2, 3], "speculative")


def test_what_the_warm_up_wrote_is_not_counted():
    race = race_of()
    command: Any = race.begin()
    race.hear(begun(command))
    race.hear(round_of(command, [1, 2], 0.7))
    assert race.plain.tokens == race.speculative.tokens == []


def test_equal_tokens_end_the_race_without_asking_the_engine():
    race, command = held([1, 2, 3], [1, 2, 3])
    assert command is None
    assert (race.phase, race.same, race.sound) == ("over", True, True)
    assert race_result(race).line == "identical: all 3 tokens are the same, one by one"


def test_one_token_is_one_token():
    race, _ = held([1], [1])
    assert race_result(race).line == "identical: the one token is the same, one by one"
    assert (numbers.tokens(1), numbers.tokens(1204)) == ("1 token", "1,204 tokens")


def test_times_leave_the_prompt_out_and_the_ratio_is_per_token():
    race, _ = held([1, 2, 3], [1, 2, 3])
    assert race.plain.decode_s == pytest.approx(0.3)
    assert race.speculative.decode_s == pytest.approx(0.1)
    assert race.ratio == pytest.approx(3.0)


def test_a_heat_that_still_runs_is_timed_from_the_end_of_its_prompt():
    race = race_of(warm_up=False)
    command: Any = race.begin()
    race.hear(begun(command))
    race.hear(round_of(command, [1], 0.7))
    race.hear(round_of(command, [2], 0.9, 1))
    assert race.plain.began_s == pytest.approx(0.6)
    assert race.plain.decode_s == pytest.approx(0.3)


def test_tokens_that_part_are_compared_by_the_engine():
    race, command = held([1, 2, 3], [1, 9, 3])
    assert command == Compare(5, MESSAGES, 7, [1, 2, 3], [1, 9, 3], {})
    assert race.phase == "comparing"


@pytest.mark.parametrize(
    ("compared", "settings", "loss", "kind", "sound", "words"),
    [
        (ev.Compared(5, 1, " a", "\n", 0.02, 0.3, True), {}, LOSS, "tie", True,
         "the same for 1 token, then plain wrote ' a' and speculation '\\n': a near-tie, plain's own is 0.02 ahead "
         "(passes of different sizes round apart by up to 0.3 in int4)"),
        (ev.Compared(5, 1, "a", "b", 4.0, 0.3), {}, LOSS, "fault", False, "NOT the same for 1 token"),
        (ev.Compared(5, 1, "a", "", None, 0.0), {}, LOSS, "fault", False, "where speculation ended"),
        (ev.Compared(5, 1, "a", "b", 4.0, 0.0), {"rule": "multi_step", "temperature": 0.8},
         ev.Losslessness(True, "same law"),
         "law", True,
         "another text, same distribution for 1 token, then plain wrote 'a' and speculation 'b': same law"),
        (ev.Compared(5, 1, "a", "b", 4.0, 0.0), {"rule": "multi_step"}, ev.Losslessness(True, "same law"),
         "fault", False, "NOT the same"),
        (ev.Compared(5, 1, "a", "b", 4.0, 0.0), {"rule": "typical"}, ev.Losslessness(False, "on purpose"),
         "law", True, "another text"),
    ],
)  # fmt: skip
def test_a_parting_is_a_tie_another_letter_of_the_same_law_or_a_fault(compared, settings, loss, kind, sound, words):
    race, _ = held([1, 2, 3], [1, 9, 3], loss, **settings)
    race.hear(compared)
    found = race_result(race, "int4")
    assert (race.phase, found.kind, race.sound) == ("over", kind, sound)
    assert words in found.line


def test_the_same_tokens_under_a_rule_of_the_law_are_not_called_promised():
    race, _ = held([1, 2], [1, 2], ev.Losslessness(True, "the law"), rule="recursive", temperature=0.8)
    assert race_result(race).line == "identical here, all 2 tokens; though less is promised: the law"


def test_an_engine_that_cannot_compare_leaves_the_margin_open():
    race, _ = held([1, 2], [1, 3])
    race.hear(ev.Failed("UsageError", "a line is not a command", during="protocol"))
    assert (race.phase, race_result(race).kind) == ("over", "open")


def test_an_engine_that_writes_plainly_only_in_name_is_found_out():
    race = race_of(warm_up=False)
    command: Any = race.begin()
    stop = race.hear(ev.Started(command.id, MESSAGES, 9, 8, 7, SETTINGS, LOSS, "smol"))
    assert stop == Cancel(command.id)
    assert race.phase == "failed"
    assert "too old" in race.problem


@pytest.mark.parametrize("change", [{"temperature": 0.5}, {"nodes": 3}])
def test_settings_that_differ_between_the_sides_end_the_race(change):
    race = race_of(warm_up=False)
    plain, other = sides(race.begin())
    race.hear(begun(plain))
    assert race.hear(begun(other, **change)) == Cancel(plain.id)
    assert race.phase == "failed"
    assert "in the middle of the race" in race.problem


def test_a_stopped_race_asks_for_nothing_more():
    race = race_of()
    command: Any = race.begin()
    assert race.stop() == Cancel(command.id)
    assert race.hear(ended(command, 1.0, "cancelled")) is None
    assert race.phase == "stopped"
    assert race.stop() is None


@pytest.mark.parametrize("event", [ev.Died(-9, ""), ev.Failed("UsageError", "no room", id=1, during="generate")])
def test_a_failure_ends_the_race_with_its_reason(event):
    race = race_of()
    race.begin()
    assert race.hear(event) is None
    assert race.phase == "failed"
    assert race.problem in ("the engine stopped", "no room")


def test_answers_to_others_are_not_heard():
    race = race_of(warm_up=False)
    command: Any = race.begin()
    race.hear(begun(command))
    other = Generate(99, MESSAGES)
    race.hear(round_of(other, [1], 0.7))
    race.hear(ended(other, 1.0))
    assert race.plain.tokens == []
    assert race.phase == "racing"


@pytest.mark.parametrize("settings", [{"controller": "off"}, {"nodes": 0}, {"drafter": "none"}])
def test_plain_decoding_does_not_race_against_itself(settings):
    with pytest.raises(UsageError, match="plain decoding already"):
        refuse_plain(SETTINGS | settings)


def test_what_is_compared_is_said_in_one_line():
    assert settings_line(SETTINGS, 7, "int4") == "prompt_lookup · chain · 16 nodes · int4 · greedy · seed 7"
    chosen = SETTINGS | {"rule": "recursive", "controller": "goodput", "temperature": 0.8}
    line = "prompt_lookup · chain · recursive · goodput · 16 nodes · temperature 0.8 · seed 7"
    assert settings_line(chosen, 7) == line
