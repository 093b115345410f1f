"""The empty page: a recorded tree grows on it, and it offers questions."""

from __future__ import annotations

import pytest
from driving import driving
from rich.cells import cell_len

from specchat.config import shipped_file
from specchat.engine.client.replay import Recording
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Message
from specchat.tui.text.cells import width_of
from specchat.tui.tree import ASCII, UNICODE, draw, growing_tree, picture_of
from specchat.tui.tree.growing_tree import GrowingTree, depths_of, growing_tree_lines, grown_to
from specchat.tui.widgets.welcome import QUESTIONS, Welcome

DEMO = shipped_file("assets/demo.jsonl")


@pytest.fixture(scope="module")
def rounds() -> list[ev.RoundDone]:
    return [event for event in Recording.read(DEMO).replies()[0] if isinstance(event, ev.RoundDone)]


def text_of(lines) -> list[str]:
    """A character for every cell: a wide one is followed by itself."""
    return ["".join(char * cell_len(char) for text, _ in line for char in text) for line in lines]


@pytest.mark.parametrize("marks", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_a_growing_tree_only_adds_and_ends_as_the_whole_tree(rounds, marks):
    for round in rounds[:60]:
        drawing = draw(picture_of(round, marks, 0), 70, 30, "river", marks)
        depths = depths_of(round)
        before = [" " * width_of(line) for line in drawing.lines]
        for depth in range(max(depths) + 1):
            now = text_of(grown_to(drawing, depths, depth, marks))
            assert all(
                old in (" ", new) for a, b in zip(before, now, strict=True) for old, new in zip(a, b, strict=True)
            )
            before = now
        bonus = len(depths)
        ends = [left for _, left, _, node in drawing.places if node == bonus]
        whole = text_of(drawing.lines)
        assert [line.rstrip() for line in before[1:]] == [line.rstrip() for line in whole[1:]]
        assert before[0].rstrip() in (whole[0][: min(ends)].rstrip(), whole[0][: min(ends) - 1].rstrip())


def test_no_line_of_a_growing_tree_leads_nowhere(rounds):
    """A branch's line stands only beside a node that is shown, or above one in its own column."""
    for round in rounds[:60]:
        drawing = draw(picture_of(round, UNICODE, 0), 70, 30, "river", UNICODE)
        for depth in range(1, max(depths_of(round)) + 1):
            lines = text_of(grown_to(drawing, depths_of(round), depth, UNICODE))
            for y, line in enumerate(lines):
                for x, cell in enumerate(line):
                    if cell in "├╰":
                        assert line[x + 1] == "◌", (lines, x, y)
                    if cell == "│":
                        assert any(len(other) > x and other[x] in "├╰" for other in lines[y + 1 :]), lines


def test_every_picture_takes_the_same_lines_so_that_nothing_below_it_moves(rounds):
    tree = GrowingTree(rounds, "model")
    while True:
        lines = growing_tree_lines(tree, 44, 7, UNICODE)
        assert len(lines) == 7
        assert all(width_of(line) <= 44 for line in lines)
        if not tree.advance():
            break
    assert tree.round is rounds[growing_tree.MOST_ROUNDS - 1]
    assert tree.whole
    assert not tree.advance()


async def test_the_tree_grows_while_nothing_is_typed_and_stands_still_then(monkeypatch):
    for name in ("DRAFT_S", "PENDING_S", "JUDGE_S", "WHOLE_S"):
        monkeypatch.setattr(growing_tree, name, 0.01)
    async with driving(demo=DEMO) as d:
        d.app.animation_level = "full"
        d.view.start_pages.show_recorded_tree()
        page = d.app.query_one(Welcome)
        seen = set()
        while len(seen) < 12:
            seen.add(d.drawn(page))
            await d.pilot.pause(0.01)
        assert any("class" in picture for picture in seen)
        await d.pilot.press("h", "i")
        await d.pilot.pause(0.1)
        still = d.drawn(page)
        await d.pilot.pause(0.2)
        assert d.drawn(page) == still
        assert d.view.prompt.text == "hi"


async def test_an_app_without_animations_shows_a_whole_tree_that_branches():
    async with driving(demo=DEMO) as d:
        page = d.app.query_one(Welcome)
        await d.until("a recording of")
        drawn = d.drawn(page)
        assert "★" in drawn
        assert "├" in drawn
        await d.pilot.pause(0.3)
        assert d.drawn(page) == drawn


@pytest.mark.parametrize("content", ["", "no recording\n"])
async def test_a_damaged_recording_leaves_the_page_without_a_tree(tmp_path, content):
    (tmp_path / "demo.jsonl").write_text(content)
    for demo in (tmp_path / "demo.jsonl", tmp_path / "none.jsonl"):
        async with driving(demo=demo) as d:
            assert "A drafter guesses a tree" in d.screen()
            assert "a recording" not in d.screen()


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 20)])
async def test_a_click_asks_the_question_that_was_clicked(size):
    async with driving(size, demo=DEMO) as d:
        for screen_line, line in enumerate(d.screen().splitlines()):
            if (begin := QUESTIONS[1][:20]) in line:
                await d.pilot.click(offset=(line.index(begin) + 3, screen_line))
        await d.settle()
        assert [command.messages for command in d.generates()] == [[Message("user", QUESTIONS[1])]]
        assert not d.app.query(Welcome)


async def test_a_key_asks_a_question_and_leaves_the_prompt_as_it_is():
    async with driving() as d:
        d.view.prompt.write("half a thought")
        await d.pilot.press("alt+z")
        await d.settle()
        assert d.generates()[-1].messages == [Message("user", QUESTIONS[2])]
        assert d.view.prompt.text == "half a thought"
        assert d.view.prompt.sent.texts == [QUESTIONS[2]]


async def test_a_question_chosen_while_a_pair_is_loaded_waits_for_it():
    async with driving(loaded=False) as d:
        await d.pilot.press("alt+x")
        await d.pilot.press("alt+y")
        assert d.app.chat.queued == QUESTIONS[0]
        assert "one message is waiting" in d.screen()


async def test_the_keys_of_the_questions_do_nothing_in_a_chat():
    async with driving() as d:
        await d.say("hi")
        await d.reply("fine")
        await d.pilot.press("alt+x")
        await d.settle()
        assert len(d.generates()) == 1


async def test_narrow_questions_are_wrapped_and_any_of_their_lines_asks_them():
    async with driving((60, 20)) as d:
        lines = d.screen().splitlines()
        assert "…" not in "".join(line[:31] for line in lines)
        (row,) = (at for at, line in enumerate(lines) if "a rainy day." in line)
        await d.pilot.click(offset=(lines[row].index("rainy"), row))
        await d.settle()
        assert d.generates()[-1].messages == [Message("user", QUESTIONS[1])]


async def test_an_empty_tree_says_whole_words_what_will_stand_there():
    async with driving((60, 20)) as d:
        assert "each round's token tree" in " ".join(d.drawn(d.view.tree_panel).split())
