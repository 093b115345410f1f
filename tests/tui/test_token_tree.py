"""The tree always fits its room, and never hides an accepted token without saying so."""

from __future__ import annotations

import math
import random

import pytest
from fake import round_at, rounds_of, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.round_parts import Draw, Piece, Timings, Tree, Verdict
from specchat.tui.text.cells import width_of
from specchat.tui.tree import ASCII, UNICODE, draw, fitting_mode, hides_most, layout, picture_of
from specchat.tui.tree.picture import label

TEXTS = ["", " the", "\n", "\t", "你好", " 🎉", "⟨e2⟩", "[red]", "\x1b[31m", "internationally", "a"]
LOOKS = ["accepted", "bonus", "rejected", "unreached", "pruned", "cut", "pending"]
modes = st.sampled_from(["auto", "river", "log", "map", "strip"])


def any_round() -> st.SearchStrategy[ev.RoundDone]:
    """Rounds of 1 to 24 nodes; of each only its size and a seed are drawn, which takes a tenth of the time."""
    return st.builds(round_by_chance, st.integers(1, 24), st.integers(0, 2**32))


def round_by_chance(count: int, seed: int) -> ev.RoundDone:
    chance = random.Random(seed)
    parents = [-1, *(chance.randrange(index) for index in range(1, count))]
    path: list[int] = []
    node = 0
    while children := [i for i, p in enumerate(parents) if p == node and i > 0]:
        if chance.random() < 0.4:
            break
        node = chance.choice(children)
        path.append(node)
    reasons = ["accepted" if i == 0 or i in path else chance.choice(["rejected", "unreached", "pruned", "cut"])
               for i in range(count)]  # fmt: skip
    logprobs = [chance.choice([None, math.nan, 0.1, 0.0, -30.0, -30 * chance.random()]) for _ in range(count)]
    return ev.RoundDone(
        1, 0, 0.0, 1, {}, Tree(list(range(count)), parents, chance.choices(TEXTS, k=count), [], logprobs),
        Verdict(path, chance.choice([None, 3]), chance.choice(TEXTS), None, reasons), [], Timings(0, 0, 0),
    )  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(any_round(), st.integers(1, 70), st.integers(1, 30), modes, st.sampled_from([UNICODE, ASCII]))
def test_every_line_fits_the_room_it_is_given(round, width, height, mode, marks):
    lines = layout(round, width, height, mode, marks)
    assert len(lines) <= height
    assert all(width_of(line) <= width for line in lines)


@settings(max_examples=400, deadline=None)
@given(any_round(), st.integers(24, 70), st.integers(1, 30), modes)
def test_every_accepted_token_is_on_the_screen_or_said_to_be_left_out(round, width, height, mode):
    lines = layout(round, width, height, mode)
    shown = "".join(text for line in lines for text, _ in line)
    elided = any("…" in text and any(c.isdigit() for c in text) for line in lines for text, _ in line)
    counted = f"●{len(round.verdict.path)}" in shown
    accepted = sum(text == "●" for line in lines for text, role in line if role == "accepted")
    assert accepted == len(round.verdict.path) or elided or counted


@settings(max_examples=200, deadline=None)
@given(any_round(), st.integers(38, 70))
def test_the_river_runs_along_the_top(round, width):
    lines = layout(round, width, 30, "river")
    top = [text for text, role in lines[0] if role in ("root", "accepted", "bonus") and text not in "●★"]
    spine = [node for node in picture_of(round, UNICODE).spine if node.label not in "●★"]
    left_out = 0
    if top[0].startswith("…") and top[0].endswith("…"):
        left_out = int(top.pop(0).strip("…"))
    assert len(top) == len(spine) - left_out
    assert all(text in (node.label, node.whole) for text, node in zip(top, spine[left_out:], strict=True))
    below = [role for line in lines[1:] for _, role in line]
    assert not {"root", "accepted", "bonus"} & set(below)


def big_round(count: int = 64, levels: int = 8, accepted: int = 4) -> ev.RoundDone:
    """A round of many nodes, the same every time: a path, and everything else hung evenly below what is there."""
    parents, depths = [-1], [0]
    for node in range(1, count + 1):
        parent = node - 1 if node <= levels else (node * 7) % (node // 2 + 1)
        parent = parent if depths[parent] < levels else 0
        parents.append(parent)
        depths.append(depths[parent] + 1)
    path = list(range(1, accepted + 1))
    standing = {0, *path}
    reasons = ["accepted" if n in standing else "rejected" if parents[n] in standing else "unreached"
               for n in range(count + 1)]  # fmt: skip
    logprobs = [None if not n or parents[n] not in standing else -0.2 * (n % 9) for n in range(count + 1)]
    draws = [Draw(n, "point", "a+b" if n % 11 == 0 else "a", -0.3 * (n % 7)) for n in range(1, count + 1)]
    words = [" the", " fox", "ly", " jumps", "\n", " 犬", " over"]
    texts = [words[n % 7] for n in range(count + 1)]
    return ev.RoundDone(
        1, 0, 0.1, 9, {"nodes": count, "depth": levels, "width": 8},
        Tree(list(range(count + 1)), parents, texts, draws, logprobs),
        Verdict(path, 3, " sleeps", -0.3, reasons), [Piece(1, "x", "target")], Timings(0.002, 0.004, 0.0),
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["river", "log", "map", "strip"])
@pytest.mark.parametrize("width", [24, 43, 60])
def test_what_is_revealed_step_by_step_never_moves(mode, width):
    round = big_round(24)
    pictures = [picture_of(round, UNICODE, upto) for upto in range(len(round.verdict.path) + 2)]
    drawings = [draw(picture, width, 20, mode, UNICODE) for picture in pictures]
    if mode == "strip":
        assert all(len(drawing.lines) == 1 for drawing in drawings)
        return
    assert all(drawing.places == drawings[0].places for drawing in drawings)
    assert drawings[-1].lines == draw(picture_of(round, UNICODE), width, 20, mode, UNICODE).lines
    looks = [{node.shown_state for node in picture.nodes[1:]} for picture in pictures]
    assert looks[0] == {"pending"}
    assert "pending" not in looks[-1]


@settings(max_examples=200, deadline=None)
@given(any_round(), st.integers(10, 70), st.integers(2, 30), modes, st.sampled_from([UNICODE, ASCII]))
def test_every_place_of_a_node_holds_something_of_it(round, width, height, mode, marks):
    drawing = draw(picture_of(round, marks), width, height, mode, marks)
    for line, left, right, node in drawing.places:
        assert 0 <= left <= right <= width
        assert 0 <= node <= len(round.tree.tokens)
        if left < right:
            assert drawing.node_at(left, line) == node
    assert len(drawing.lines) <= height


@settings(max_examples=200, deadline=None)
@given(any_round(), st.integers(40, 70), st.integers(8, 30))
def test_a_map_shows_every_node_or_counts_those_it_leaves_out(round, width, height):
    drawing = draw(picture_of(round, UNICODE), width, height, "map", UNICODE)
    nodes = {*range(1, len(round.tree.tokens)), *([len(round.tree.tokens)] if round.verdict.bonus is not None else [])}
    told = [text for line in drawing.lines for text, _ in line if text.startswith("… ") and text.endswith(" more")]
    marked = {node for line, left, _, node in drawing.places if line >= 2}
    missing = len(nodes - marked)
    assert missing == (int(told[-1].split()[1]) if told else 0)


def test_a_tree_of_which_a_river_would_hide_most_is_drawn_as_a_map():
    assert not hides_most(picture_of(big_round(20), UNICODE), 43, 14, "auto", UNICODE)
    assert hides_most(picture_of(big_round(200), UNICODE), 43, 14, "auto", UNICODE)
    lines = layout(big_round(200), 43, 14)
    assert "".join(text for text, _ in lines[1]).split()[:3] == ["1", "2", "3"]


def test_pruned_cut_and_merged_nodes_have_marks_of_their_own():
    tree = Tree([0, 1, 2, 3], [-1, 0, 0, 1], ["a", "b", "c", "d"], [
        Draw(1, "point", "x", None), Draw(1, "point", "y", None), Draw(2, "point", "x", None),
        Draw(3, "point", "x", None),
    ], [None, -0.1, None, None])  # fmt: skip
    verdict = Verdict([1], None, "", None, ["accepted", "accepted", "pruned", "cut"])
    round = ev.RoundDone(1, 0, 0.0, 1, {}, tree, verdict, [], Timings(0, 0, 0))
    for marks, seen in ((UNICODE, "●b² ⊘c ◐d"), (ASCII, "*b& %c !d")):
        text = "".join(text for line in layout(round, 40, 10, "river", marks) for text, _ in line)
        assert all(piece in text for piece in seen.split())
    assert len({getattr(marks, name) for marks in (ASCII,) for name in LOOKS}) == len(LOOKS)
    assert len({getattr(UNICODE, name) for name in LOOKS}) == len(LOOKS)


def test_white_space_of_tokens_can_be_seen_and_long_ones_are_cut_by_cells():
    assert label(" a\n\t", UNICODE) == "·a⏎⇥"
    assert label("你好你好你好", UNICODE) == "你好你好…"
    assert label("", UNICODE) == "∅"
    assert label("\x1b[0m", UNICODE) == "␛[0m"
    assert label("你 b", ASCII).isascii()


def test_a_plain_round_is_one_token_in_every_mode():
    plain = round_at(0, ["a", "b", "c"], 1, 0, 1)
    plain = ev.RoundDone(1, 0, 0.1, 9, {"nodes": 0}, Tree([0], [-1], ["a"], [], [None]),
                         Verdict([], 3, " b", -0.1, ["accepted"]), plain.pieces, plain.timings)  # fmt: skip
    assert ["".join(t for t, _ in line) for line in layout(plain, 40, 10)] == ["a━★·b"]
    assert "★ ·b" in "".join(t for t, _ in layout(plain, 20, 10, "log")[1])
    assert "".join(t for t, _ in layout(plain, 20, 1)[0]) == "a★·b"


def test_ascii_marks_leave_nothing_else_on_the_screen():
    for round in rounds_of():
        for line in layout(round, 40, 12, "river", ASCII):
            assert "".join(text for text, _ in line).isascii()


@pytest.mark.parametrize(("width", "height", "mode"), [(40, 12, "river"), (28, 12, "log"), (40, 1, "strip")])
def test_auto_chooses_by_the_room(width, height, mode):
    assert fitting_mode("auto", width, height) == mode


def text_of(lines) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def test_a_long_path_is_one_line_that_scrolls_sideways_to_its_end_or_to_the_selected_node():
    words = tokens_of("one two three four five six seven eight nine ten eleven twelve")
    round = round_at(0, words, 1, 10, 1)
    top, *below = text_of(layout(round, 40, 12, "river"))
    assert top.startswith("…8…━●·nine")
    assert top.endswith("┯★·twelve")
    assert not any("●" in line for line in below)
    first = draw(picture_of(round, UNICODE, chosen=1), 40, 12, "river", UNICODE)
    assert text_of(first.lines)[0].startswith("one━●·two━●·three")
    assert "…7…" in text_of(first.lines)[0]
    assert 1 in first.shown


def forked(*branches: str) -> ev.RoundDone:
    """A round with two accepted tokens, and these branches below the first."""
    texts = ["root", " first", " second", *branches]
    parents = [-1, 0, 1, *(1 for _ in branches)]
    reasons = ["accepted"] * 3 + ["rejected"] * len(branches)
    return ev.RoundDone(
        1, 0, 0.0, 1, {}, Tree(list(range(len(texts))), parents, texts, [], [None] * len(texts)),
        Verdict([1, 2], 9, " third", None, reasons), [], Timings(0, 0, 0),
    )  # fmt: skip


def test_rejected_branches_are_cut_shorter_before_the_path_is():
    round = forked("internationalization")
    assert "internationalization" in text_of(layout(round, 60, 8, "river"))[1]
    top, below = text_of(layout(round, 30, 8, "river"))
    assert top == "root━●·first┯●·second━★·third"
    assert below.strip() == "╰✕internati…"


def test_no_token_is_cut_where_there_is_room():
    long = "incomprehensibilities"
    lines = text_of(layout(forked(long, " counterrevolutionaries"), 196, 40, "river"))
    assert long in lines[1]
    assert "·counterrevolutionaries" in lines[2]
    assert not any("…" in line for line in lines)


def test_nothing_is_counted_as_left_out_where_there_are_lines_for_it():
    branches = [f" b{n}" for n in range(9)]
    assert not any("more" in line for line in text_of(layout(forked(*branches), 40, 10, "river")))
    assert text_of(layout(forked(*branches), 40, 9, "river"))[-1] == "… 2 more"


@pytest.mark.parametrize("token", ["<|im_end|>", "</s>", "<end_of_turn>", "<|endoftext|>"])
def test_the_token_that_ends_a_reply_is_named(token):
    round = forked(token)
    assert label(token, UNICODE) == "end of reply"
    assert any("✕end of reply" in line for line in text_of(layout(round, 60, 8, "river")))
    assert label(f"a {token}", UNICODE, 30) == f"a·{token}", "text that only contains it is text"


def test_labels_stay_wide_where_cutting_them_saves_no_line():
    branches = [f" another{n}" for n in range(9)]
    lines = text_of(layout(forked(*branches), 76, 6, "river"))
    assert [line.strip()[2:] for line in lines[1:-1]] == [f"·another{n}" for n in range(4)]
    assert lines[-1] == "… 5 more"
