"""The details of a node: the reason of its verdict, its probabilities and its proposers."""

from __future__ import annotations

import math

import msgspec
import pytest
from fake import broad, nodes_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_token_tree import any_round

from specchat.engine.protocol.round_parts import Draw, Source, Tree, Verdict
from specchat.tui.text.cells import width_of
from specchat.tui.tree import ASCII, UNICODE, picture_of
from specchat.tui.tree.node_details import DICE, depth_of, details, drawn_sentence, parent_of, reason_of
from specchat.tui.tree.picture import label


@settings(max_examples=200, deadline=None)
@given(any_round(), st.data(), st.integers(1, 60), st.sampled_from([UNICODE, ASCII]))
def test_every_node_tells_about_itself_in_the_room_there_is(round, data, width, marks):
    node = data.draw(st.integers(0, nodes_of(round) - 1))
    lines = details(round, node, width, marks)
    assert lines
    assert all(width_of(line) <= width for line in lines)
    assert reason_of(round, node, marks)


def chance(round, node) -> str:
    return f"{math.exp(round.tree.target_logprob[node]) * 100:.0f}\u00a0%"


def test_a_rejected_token_tells_what_the_target_wrote_instead():
    round = broad()
    rejected = [n for n, reason in enumerate(round.verdict.reasons) if reason == "rejected"]
    last = max(rejected, key=lambda n: depth_of(round, n))
    assert (
        reason_of(round, last, UNICODE)
        == f"the target wrote {round.verdict.bonus_text.replace(' ', '·')} (82\u00a0%); "
        f"{label(round.tree.texts[last], UNICODE)} had {chance(round, last)}"
    )
    assert reason_of(round, last, UNICODE, 0.5).startswith("temperature 0.5 drew ·")
    assert reason_of(round, last, UNICODE, 0.0).startswith("the target's likeliest is ·")
    assert DICE in " ".join("".join(text for text, _ in line) for line in details(round, last, 200, UNICODE, 0.5))
    assert not any("dice" in text for line in details(round, last, 200, UNICODE, 0.0) for text, _ in line)
    early = next(n for n in rejected if parent_of(round, n) in round.verdict.path[:-1])
    instead = round.verdict.path[round.verdict.path.index(parent_of(round, early)) + 1]
    assert round.tree.texts[instead].replace(" ", "·").replace("\n", "⏎") in reason_of(round, early, UNICODE)


def test_a_verdict_says_which_token_was_drawn_and_how_likely_each_was():
    likely, unlikely, rare = math.log(0.64), math.log(0.07), math.log(0.001)
    for temperature, drawn, other, said in [
        (0.5, ("·stood", unlikely), ("·was", likely), "temperature 0.5 drew ·stood (7 %); ·was had 64 %"),
        (1.0, ("·stood", rare), None, "temperature 1 drew ·stood (< 1 %)"),
        (0.0, ("·was", likely), ("·stood", unlikely), "the target's likeliest is ·was (64 %); ·stood had 7 %"),
        (0.0, ("·stood", unlikely), ("·was", likely),
         "after penalties the target's likeliest is ·stood (7 %); ·was had 64 %"),
        (None, ("·stood", unlikely), ("·was", likely), "the target wrote ·stood (7 %); ·was had 64 %"),
        (None, ("·stood", None), ("·was", None), "the target wrote ·stood"),
    ]:  # fmt: skip
        assert drawn_sentence(temperature, drawn, other).replace("\u00a0", " ") == said


@pytest.mark.parametrize(
    ("reason", "said"),
    [("pruned", "in the middle of the target's pass"), ("cut", "the reply ended before it"),
     ("unreached", "not reached"), ("accepted", "the target wrote it too")],
)  # fmt: skip
def test_every_reason_is_told_in_words(reason, said):
    tree = Tree([0, 1, 2], [-1, 0, 1], ["a", "b", "c"], [], [None, -0.1, None])
    path = [1, 2] if reason == "accepted" else [1]
    round = msgspec.structs.replace(
        broad(), tree=tree, verdict=Verdict(path, 3, "d", -0.1, ["accepted", "accepted", reason])
    )
    assert said in reason_of(round, 2, UNICODE)


@pytest.mark.parametrize(
    ("source", "said"),
    [(Source(9, "system"), "copied from the system message, its beginning"),
     (Source(9, "user", 2, "one two"), "copied from your message 2, after one·two"),
     (Source(9, "assistant", 3, "one"), "copied from reply 3, after one"),
     (Source(9, "reply", 1, "one"), "copied from this reply, after one"),
     (Source(9, "datastore", 1, "one two", "notes.txt"), "copied from notes.txt, after one·two"),
     (Source(9, "datastore", 1), "copied from a datastore, its beginning"),
     (Source(9, "prompt", 1, "a\x1b[31m\u202eb"), "copied from the prompt, after a␛[31m⟨202e⟩b")],
)  # fmt: skip
def test_a_copied_token_tells_where_from_and_controls_nothing(source, said):
    round = broad()
    pieces = [msgspec.structs.replace(round.pieces[0], source=source), *round.pieces[1:]]
    copied = msgspec.structs.replace(round, pieces=pieces)
    first, second, _ = round.verdict.path
    assert reason_of(copied, first, UNICODE) == said
    assert reason_of(copied, second, UNICODE) == "the target wrote it too"
    assert all(width_of(line) <= 30 for line in details(copied, first, 30, UNICODE))


def test_a_node_pruned_too_soon_is_owned_up_to():
    tree = Tree([0, 1, 2, 3], [-1, 0, 1, 1], ["a", "b", "c", "d"], [], [None, -0.1, None, None])
    verdict = Verdict([1], 3, "d", -0.1, ["accepted", "accepted", "pruned", "pruned"])
    round = msgspec.structs.replace(broad(), tree=tree, verdict=verdict)
    assert reason_of(round, 3, UNICODE).endswith("though the target wrote it")
    assert reason_of(round, 2, UNICODE).endswith("in the middle of the target's pass")


def test_all_who_proposed_a_token_are_named_and_marked():
    tree = Tree([0, 1, 2], [-1, 0, 0], ["a", "b", "c"], [
        Draw(1, "point", "suffix+prompt_lookup", -0.7), Draw(2, "iid", "draft_model", -0.1),
        Draw(2, "iid", "draft_model", -0.1),
    ], [None, -0.1, -3.0])  # fmt: skip
    round = msgspec.structs.replace(
        broad(), tree=tree, verdict=Verdict([1], 3, "d", -0.1, ["accepted", "accepted", "rejected"])
    )
    told = ["".join(text for text, _ in line) for line in details(round, 1, 60, UNICODE)]
    assert "by suffix and prompt_lookup · picked, not drawn at random" in told
    assert told[0].endswith("target p 0.90 · draft q 0.50")
    assert "".join(text for text, _ in details(round, 1, 24, UNICODE)[0]).endswith("p 0.90 · q 0.50")
    twice = ["".join(text for text, _ in line) for line in details(round, 2, 60, UNICODE)]
    assert "by draft_model · 2 draws: drawn at random" in twice
    assert [node.agreed for node in picture_of(round, UNICODE).nodes] == ["", "²", ""]
    assert [node.agreed for node in picture_of(round, ASCII).nodes] == ["", "&", ""]
