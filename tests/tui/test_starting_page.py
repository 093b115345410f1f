"""The empty page: a recorded tree grows on it, and it offers questions."""

from __future__ import annotations

import pytest
from driving import driving
from rich.cells import cell_len

from specchat.config.directories import shipped_file
from specchat.engine.client.replay import Recording
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Message
from specchat.tui.state.pair_list import Offer
from specchat.tui.text.cells import width_of
from specchat.tui.tree import ASCII, UNICODE, draw, growing_tree, picture_of
from specchat.tui.tree.growing_tree import GrowingTree, depths_of, growing_tree_lines, grown_to
from specchat.tui.widgets.tree_panel import TreePanel
from specchat.tui.widgets.welcome import QUESTIONS, Welcome

DEMO = shipped_file("assets/demo.jsonl")


@pytest.fixture(scope="module")
def rounds() -> list[ev.RoundDone]:
    """Without the last one, which may end the reply with a guess and have no token of the target's own."""
    return [event for event in Recording.read(DEMO).replies()[0] if isinstance(event, ev.RoundDone)][:-1]


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


def test_a_narrow_line_without_a_drafted_guess_is_empty(rounds):
    for round in rounds[:60]:
        drawing = draw(picture_of(round, UNICODE, 0), 25, 30, "log", UNICODE)
        for depth in range(1, max(depths_of(round)) + 1):
            for line in text_of(grown_to(drawing, depths_of(round), depth, UNICODE)):
                assert not line.strip(" │├╰─") or any(mark in line for mark in "●◌★"), (depth, line)


def test_every_picture_takes_the_same_lines_so_that_nothing_below_it_moves(rounds):
    tree = GrowingTree(rounds, "model")
    while True:
        for width, height in ((44, 7), (25, 14)):
            lines = growing_tree_lines(tree, width, height, UNICODE)
            assert len(lines) == height
            assert all(width_of(line) <= width for line in lines)
        if not tree.advance():
            break
    assert tree.round is rounds[growing_tree.MOST_ROUNDS - 1]
    assert tree.whole
    assert not tree.advance()


@pytest.mark.parametrize(("size", "where"), [((120, 40), TreePanel), ((80, 24), TreePanel), ((60, 30), Welcome)])
async def test_the_tree_grows_while_nothing_is_typed_and_stands_still_then(monkeypatch, size, where):
    """It grows in the panel, or on the page where the panel has no room."""
    for name in ("DRAFT_S", "PENDING_S", "JUDGE_S", "WHOLE_S"):
        monkeypatch.setattr(growing_tree, name, 0.01)
    async with driving(size, demo=DEMO) as d:
        d.app.animation_level = "full"
        d.view.start_pages.show_recorded_tree()
        page = d.app.query_one(where)
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
        page = d.view.tree_panel
        await d.until("a recording")
        drawn = d.drawn(page)
        assert "★" in drawn
        assert "├" in drawn
        await d.pilot.pause(0.3)
        assert d.drawn(page) == drawn


async def test_the_recording_leaves_the_panel_with_the_page_and_comes_back_with_it():
    async with driving(demo=DEMO) as d:
        await d.until("a recording")
        await d.say("hi")
        await d.settle()
        assert "a recording" not in d.drawn(d.view.tree_panel)
        await d.reply("ok")
        await d.pilot.press("ctrl+n")
        await d.until("a recording")


async def test_the_last_question_of_the_page_is_asked_with_trees_that_fill_the_window():
    async with driving(demo=DEMO) as d:
        await d.pilot.press("alt+w")
        await d.settle()
        assert d.view.show_mode.active
        assert d.generates()[-1].messages == [Message("user", QUESTIONS[-1].removeprefix("/show "))]


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
        (row,) = (at for at, line in enumerate(lines) if "string." in line)
        await d.pilot.click(offset=(lines[row].index("string."), row))
        await d.settle()
        assert d.generates()[-1].messages == [Message("user", QUESTIONS[1])]


async def test_questions_are_cut_where_their_whole_words_would_take_the_trees_room():
    async with driving((60, 24), demo=DEMO) as d:
        screen = await d.until("a recording")
        assert "Write a Python" in screen
        assert "reverses a string." not in screen
        assert "★" in d.drawn(d.app.query_one(Welcome))


async def test_a_small_model_is_called_a_toy_and_enter_fetches_a_better_one():
    asked = []

    def better(pair: str) -> Offer:
        asked.append(pair)
        return Offer("135M", "qwen", 400_000_000)

    async with driving(better=better, engine_here=True) as d:
        fetched = []
        d.app.context.pairs.fetch = fetched.append
        screen = await d.until("A model of 135M is a quick toy. Better: qwen, 400 MB · Enter fetches it while you play")
        assert asked == ["smol"]
        assert QUESTIONS[0] in screen
        await d.pilot.press("enter")
        await d.settle()
        assert fetched == ["qwen"]
        assert "quick toy" not in d.screen()
        assert "the chat goes on meanwhile" in d.drawn(d.view.notice)


async def test_enter_fetches_nothing_where_the_page_has_no_room_to_say_so():
    offer = Offer("135M", "qwen", 400_000_000, 61.4)
    async with driving((40, 12), better=lambda pair: offer, engine_here=True) as d:
        fetched = []
        d.app.context.pairs.fetch = fetched.append
        await d.settle()
        assert d.app.chat.background.offer == offer
        assert "Better" not in d.screen()
        await d.pilot.press("enter")
        await d.settle()
        assert fetched == []


async def test_a_better_model_is_offered_though_the_tour_was_shown_when_the_small_one_was_read(tmp_path):
    offer = Offer("135M", "qwen", 400_000_000, 61.4)
    async with driving(better=lambda pair: offer, engine_here=True, toured=tmp_path / "toured") as d:
        await d.until("1 of 3")
        await d.pilot.press("enter", "enter", "enter")
        await d.until("Better: qwen, 400 MB, about 61 tok/s here · Enter fetches")


async def test_an_empty_tree_says_whole_words_what_will_stand_there():
    async with driving((60, 20)) as d:
        assert "each round's token tree" in " ".join(d.drawn(d.view.tree_panel).split())
