"""The arithmetic behind the figures."""

from __future__ import annotations

import re

import msgspec
import pytest
from fake import LOSS, round_at, rounds_of, stats_of
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.client.speedup import stats_line
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.round_parts import Timings, Tree, Verdict
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.stats_lines import StatsFacts, plan_of, stats_lines
from specchat.tui.text import numbers
from specchat.tui.text.cells import width_of
from specchat.tui.tree.panel_lines import summary_of


def counted(rounds: list[ev.RoundDone]) -> Figures:
    figures = Figures()
    for round in rounds:
        figures.add(round)
    return figures


def test_live_figures_agree_with_what_the_rounds_say():
    rounds = rounds_of()
    figures, stats = counted(rounds), stats_of(rounds)
    assert (figures.tokens, figures.drafted, figures.accepted) == (stats.tokens, stats.drafted, stats.accepted)
    assert figures.acceptance_length == pytest.approx(stats.acceptance_length)
    assert figures.acceptance_rate == pytest.approx(stats.acceptance_rate)
    assert figures.accepted_by_depth[0] == sum(bool(r.verdict.path) for r in rounds)


def test_the_speed_of_a_running_reply_is_by_the_clock_as_the_final_one_is():
    """Time between rounds counts, and that before the first one does not."""
    rounds = [msgspec.structs.replace(round, at_s=round.at_s + 5.0) for round in rounds_of(step_s=0.5)[:4]]
    own_s = rounds[0].timings.draft_s + rounds[0].timings.verify_s + rounds[0].timings.other_s
    tokens = sum(len(round.pieces) for round in rounds)
    assert counted(rounds).tokens_per_s == pytest.approx(tokens / (3 * 0.5 + own_s))


def test_recent_speed_looks_back_two_seconds_only():
    slow = rounds_of(step_s=1.0)[:4]
    figures = counted(slow)
    assert figures.recent_tokens_per_s == pytest.approx(sum(len(r.pieces) for r in slow[2:]) / 2)


def beside_plain_rounds(count: int) -> list[ev.RoundDone]:
    """A reply of which every fourth round is plain and takes 20 ms; the others take 30 ms and emit three tokens."""
    plain = Tree([0], [-1], ["a"], [], [None])
    rounds: list[ev.RoundDone] = []
    for index in range(4 * count):
        round = msgspec.structs.replace(round_at(index, ["w"] * 9, 1, 2, 2), at_s=0.0275 * (index + 1))
        if index % 4 == 3:
            round = msgspec.structs.replace(round, tree=plain, budget={"nodes": 0}, pieces=round.pieces[-1:])
        own_s = 0.020 if index % 4 == 3 else 0.030
        before_s = rounds[-1].at_s if rounds else 0.0
        rounds.append(msgspec.structs.replace(round, at_s=before_s + own_s, timings=Timings(0.0, own_s, 0.0)))
    return rounds


def test_the_speed_up_of_a_running_reply_comes_from_its_own_plain_rounds():
    assert counted(rounds_of()).speedup is None
    assert counted(beside_plain_rounds(7)).speedup is None
    figures = counted(beside_plain_rounds(9))
    assert figures.speedup.value == pytest.approx(10 * 0.020 / 0.110, rel=0.02)
    assert (figures.speedup.plain_rounds, figures.plain_rounds) == (8, 8)


def test_the_speed_up_is_shown_with_its_interval_and_its_source():
    figures = counted(rounds_of())
    figures.finish(ev.Finished(1, "end", "", stats_of(rounds_of()), 1.0))
    assert figures.line().endswith(" · 2.7× ± 0.1 (12 plain rounds here)")
    assert panel(figures)[1] == "speed-up 2.7× ± 0.1  12 plain rounds here"


def test_below_eight_plain_rounds_no_speed_up_is_shown():
    figures = counted(rounds_of())
    figures.finish(ev.Finished(1, "end", "", stats_of(rounds_of(), speedup=None, plain_rounds=7), 1.0))
    assert figures.line().endswith(" · speed-up: too few rounds to say")
    assert panel(figures)[1] == "speed-up too few rounds to say (7 of 8)"


def test_a_speed_up_that_was_withheld_says_so():
    figures = counted(rounds_of())
    figures.finish(ev.Finished(1, "end", "", stats_of(rounds_of(), speedup=None, plain_rounds=9), 1.0))
    assert figures.line().endswith(" · speed-up: too uncertain to say")
    assert panel(figures)[1] == "speed-up too uncertain to say"


def test_a_speed_up_without_its_interval_is_not_believed():
    """Recordings and chats of an earlier version hold one that was measured another way."""
    figures = counted(rounds_of())
    old = stats_of(rounds_of(), speedup=3.55, speedup_low=None, speedup_high=None, plain_rounds=0)
    figures.finish(ev.Finished(1, "end", "", old, 1.0))
    assert figures.speedup is None


def panel_facts() -> StatsFacts:
    return StatsFacts(counted(rounds_of()), LOSS, 10, 100, 1)


def panel(figures: Figures) -> list[str]:
    facts = StatsFacts(figures, LOSS, 10, 100, 1)
    return ["".join(text for text, _ in line) for line in stats_lines(facts, 60, 9)]


def test_of_a_target_elsewhere_both_clocks_are_shown():
    there = [
        msgspec.structs.replace(round, timings=Timings(0.004, 0.030, 0.001, there_s=0.008)) for round in rounds_of()
    ]
    facts = StatsFacts(counted(there))
    lines = ["".join(text for text, _ in line).split() for line in stats_lines(facts, 60, 20)]
    shown = {words[0]: words[-2:] for words in lines}
    assert (shown["there"], shown["way"]) == (["8.0", "ms"], ["22.0", "ms"])
    assert "checking" not in shown
    stats = msgspec.structs.replace(stats_of(there), rounds=10, verify_s=0.3, there_s=0.08)
    assert stats_line(stats).endswith(" · a round 8.0 ms there, 22.0 ms on the way")
    assert "there" not in stats_line(stats_of(there))


def test_a_plain_reply_claims_no_drafting():
    round = rounds_of("a b c")[0]
    tree = Tree([0], [-1], ["a"], [], [None])
    plain = ev.RoundDone(1, 0, 0.1, 1, {}, tree, Verdict([], 1, "b", None, ["accepted"]), round.pieces[-1:],
                         round.timings)  # fmt: skip
    assert counted([plain]).line().endswith("plain decoding")
    assert counted([plain]).speedup is None


@given(st.integers(1, 80), st.integers(0, 20), st.integers(0, 60), st.booleans(), st.sampled_from(["", "bfloat16"]))
def test_the_panel_fits_any_room(width, height, count, lossless, near_ties):
    figures = counted(rounds_of()[:count])
    loss = ev.Losslessness(lossless, "a reason of several words that goes on", near_ties)
    facts = StatsFacts(figures, loss, 120, 8192, 2_000_000_000, True)
    lines = stats_lines(facts, width, height)
    assert len(lines) <= height
    if width >= 26:
        assert all(width_of(line) <= width for line in lines)


def test_the_last_lines_to_go_are_the_speed_and_its_ratio():
    facts = StatsFacts(counted(rounds_of()), LOSS, 10, 100, 1)
    words = ["".join(t for t, _ in line) for line in stats_lines(facts, 40, 3)]
    assert words[0].startswith("speed ")
    assert words[1].startswith("speed-up")
    assert "lossless" in words[2]


def test_numbers_are_written_with_their_units():
    assert [numbers.size(n) for n in (12, 1_500, 143_000_000, 1_900_000_000)] == ["12 B", "1.5 kB", "143 MB", "1.9 GB"]
    assert numbers.seconds(65) == "1 min 05 s"

    def told(event: ev.Loading) -> tuple[str, float | None, str]:
        what, share, figures = numbers.loading(event)
        return what, share, str(figures)

    assert told(ev.Loading("measure", "plain", 3, 8, 0, "steps")) == ("measuring plain", 0.375, "3 of 8")
    assert told(ev.Loading("read", "x", 0, 0))[1:] == (None, "")
    assert told(ev.Loading("read", "x", 1_000, 4_000, 0, "ms")) == ("reading x", 0.25, "about 3 s left")
    assert told(ev.Loading("read", "x", 5_000, 4_000, 0, "ms")) == ("reading x", 1.0, "nearly there")


def test_the_plan_of_a_round_says_what_was_chosen_and_why():
    round = rounds_of()[3]
    assert plan_of(round) == f"{len(round.tree.tokens) - 1} guesses: fixed by you"
    alone = Tree([0], [-1], ["a"], [], [None])
    plain = msgspec.structs.replace(round, tree=alone, why="off", budget={"nodes": 0})
    assert plan_of(plain) == "plain: off"
    assert plan_of(msgspec.structs.replace(round, tree=alone)) == "nothing guessed: fixed by you"
    assert plan_of(None) == plan_of(msgspec.structs.replace(round, why="")) == ""


def test_the_reason_for_lossless_is_said_whole_or_not_at_all():
    reason = "a guess stays only where the target writes the same itself (rule 'follow')"
    facts = StatsFacts(loss=ev.Losslessness(True, reason), context_tokens=1, context_limit=8, memory_bytes=10**9)
    for height in range(1, 8):
        said = " ".join("".join(text for text, _ in line).strip() for line in stats_lines(facts, 41, height))
        assert (reason in said) == (height >= 5)
        assert ("rule" in said) == (height >= 5)


def test_what_of_the_weights_stays_in_memory_is_said_whole_or_not_at_all():
    streaming = "14 of 28 layers stay in memory; 0.45 GB are read each pass"
    facts = StatsFacts(memory_bytes=10**9, streaming=streaming)
    said = [["".join(text for text, _ in line) for line in stats_lines(facts, 36, height)] for height in (2, 4)]
    assert said[0] == []
    assert " ".join(" ".join(said[1]).split()) == f"memory 1.0 GB weights {streaming}"


@pytest.mark.parametrize(
    ("width", "badge"),
    [
        (42, "✓ lossless, up to near-ties of bfloat16"),
        (28, "✓ lossless, up to near-ties"),
        (22, "✓ lossless ≈ near-ties"),
        (14, "✓ lossless ≈"),
    ],
)
def test_lossless_names_the_near_ties_up_to_which_it_holds_in_every_width(width, badge):
    facts = StatsFacts(loss=ev.Losslessness(True, "the target's own draw decides", "bfloat16"))
    assert "".join(text for text, _ in stats_lines(facts, width, 1)[0]) == badge


def test_narrow_figures_are_said_shorter_and_not_cut():
    facts = StatsFacts(figures=counted(rounds_of()))
    lines = ["".join(text for text, _ in line) for line in stats_lines(facts, 22, 9)]
    assert any(re.fullmatch(r"guesses  \d+\.\d of \d+\.\d", line) for line in lines)


@pytest.mark.parametrize("width", [22, 27])
def test_the_share_of_the_text_is_said_whole_in_every_panel(width):
    lines = ["".join(text for text, _ in line) for line in stats_lines(panel_facts(), width, 9)]
    assert any(re.fullmatch(r"text     \d+ % guessed", line) for line in lines)


def test_guesses_made_have_as_many_decimals_as_guesses_kept():
    figures = Figures(rounds=49, tokens=157, drafted=117, accepted=108)
    assert any(line.startswith("guesses  kept 2.2 of 2.4 ") for line in panel(figures))


def test_the_corner_of_the_tree_has_the_digits_of_the_line_below_the_reply():
    figures = counted(rounds_of())
    for low, high, said in ((0.91, 0.99, "0.95×"), (0.5, 1.4, "0.9×")):
        stats = stats_of(rounds_of(), speedup=0.948, speedup_low=low, speedup_high=high)
        figures.finish(ev.Finished(1, "end", "", stats, 1.0))
        assert summary_of(figures).endswith(f" · {said}")
        assert f" · {said} ± " in figures.line()
