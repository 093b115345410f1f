"""Another answer, another question: nothing that was said is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from driving import Driver, driving, in_one_app
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.protocol.commands import Generate
from specchat.tui.state.message_tree import MessageTree
from specchat.tui.state.turn import Turn
from specchat.tui.widgets.reply_view import ReplyView


def leaf(id: str, parent: str | None = None) -> Turn:
    return Turn("user", id=id, parent=parent, created="")


def ids(branches: MessageTree) -> str:
    return "".join(node.id for node in branches.path)


def forked() -> MessageTree:
    """`ab` was said, then `c` in place of `b`, then `d`."""
    branches = MessageTree()
    for id in "ab":
        branches.add(leaf(id))
    branches.cut(branches.path[1])
    for id in "cd":
        branches.add(leaf(id))
    return branches


def test_what_is_said_instead_stands_beside_what_was_said() -> None:
    branches = forked()
    assert ids(branches) == "acd"
    assert [node.id for node in branches.siblings(branches.path[1])] == ["b", "c"]
    assert [(node.id, node.parent, node.place) for node in branches] == [
        ("a", None, (1, 1)), ("b", "a", (1, 2)), ("c", "a", (2, 2)), ("d", "c", (1, 1)),
    ]  # fmt: skip


def test_switching_goes_down_to_where_a_branch_was_left() -> None:
    branches = forked()
    assert branches.switch(branches.path[1], -1).id == "b"
    assert ids(branches) == "ab"
    assert branches.switch(branches.path[1], -1) is None
    assert branches.switch(branches.path[1], 1).id == "c"
    assert ids(branches) == "acd"
    assert branches.switch(branches.path[1], 1) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30))
def test_a_tree_that_was_written_down_is_read_back_the_same(steps: list[tuple[int, bool]]) -> None:
    branches = MessageTree()
    for number, (at, forks) in enumerate(steps):
        if forks and branches.path:
            branches.cut(branches.path[at % len(branches.path)])
        branches.add(leaf(f"n{number}"))
    again = MessageTree()
    again.restore(
        (leaf(node.id, node.parent) for node in sorted(branches, key=lambda node: int(node.id[1:]))),
        branches.path[-1].id if branches.path else None,
    )
    assert list(again) == list(branches)
    assert list(again.path) == list(branches.path)
    assert len(list(again)) == len(steps)


def said(d: Driver) -> list[str]:
    return [turn.message().content for turn in d.app.chat.turns]


def asked(d: Driver) -> Sequence[str]:
    return [message.content for message in d.link.last(Generate).messages]


def page(d: Driver) -> list[str]:
    return [view.turn.message().content for view in d.view.transcript.views]


async def two_questions(d: Driver) -> None:
    for number in (1, 2):
        await d.say(f"question {number}")
        await d.reply(f"answer {number}")


async def another_answer_stands_beside_the_first_and_brackets_switch(d: Driver) -> None:
    await two_questions(d)
    d.view.transcript.focus()
    await d.pilot.press("r")
    await d.reply("answer 2b")
    assert asked(d) == ["question 1", "answer 1", "question 2"]
    assert said(d) == page(d) == ["question 1", "answer 1", "question 2", "answer 2b"]
    assert "‹\u00a02/2\u00a0›" in d.app.query(ReplyView).last()._figures.text
    await d.pilot.press("left_square_bracket")
    await d.settle()
    assert said(d) == page(d) == ["question 1", "answer 1", "question 2", "answer 2"]
    assert "‹\u00a01/2\u00a0›" in d.app.query(ReplyView).last()._figures.text
    await d.pilot.press("left_square_bracket")
    assert "first branch" in d.drawn(d.view.notice)
    d.view.prompt.focus()
    await d.say("go on")
    assert asked(d) == ["question 1", "answer 1", "question 2", "answer 2", "go on"]


async def an_earlier_answer_is_given_again_and_what_followed_comes_back_with_the_old_one(d: Driver) -> None:
    await two_questions(d)
    d.view.transcript.focus()
    await d.pilot.press("g", "j", "r")
    await d.reply("answer 1b")
    assert asked(d) == ["question 1"]
    assert page(d) == ["question 1", "answer 1b"]
    await d.pilot.press("k", "left_square_bracket")
    await d.settle()
    assert said(d) == page(d) == ["question 1", "answer 1", "question 2", "answer 2"]


async def a_question_asked_differently_is_another_branch(d: Driver) -> None:
    await two_questions(d)
    d.view.transcript.focus()
    await d.pilot.press("g", "e")
    assert d.view.prompt.text == "question 1"
    assert "another branch" in d.drawn(d.view.notice)
    assert len(said(d)) == 4
    d.view.prompt.write("question 1b")
    await d.pilot.press("enter")
    await d.reply("answer 1b")
    assert asked(d) == ["question 1b"]
    assert page(d) == ["question 1b", "answer 1b"]
    assert "‹ 2/2 ›" in d.screen()
    d.view.transcript.focus()
    await d.pilot.press("g", "left_square_bracket")
    await d.settle()
    assert said(d) == page(d) == ["question 1", "answer 1", "question 2", "answer 2"]


async def escape_leaves_an_edit_and_the_chat_as_it_was(d: Driver) -> None:
    await two_questions(d)
    await d.say("/edit")
    assert d.view.prompt.text == "question 2"
    await d.pilot.press("escape")
    assert d.view.prompt.text == ""
    await d.say("question 3")
    assert asked(d)[-2:] == ["answer 2", "question 3"]


async def fork_says_something_else_at_once(d: Driver) -> None:
    await two_questions(d)
    await d.say("/fork question 2b")
    assert asked(d) == ["question 1", "answer 1", "question 2b"]
    assert d.view.prompt.text == ""


@pytest.mark.parametrize("key", ["r", "left_square_bracket"])
async def test_branches_wait_until_a_reply_is_written(key):
    async with driving() as d:
        await two_questions(d)
        await d.say("question 3")
        await d.reply(upto=3, finish=False)
        before = said(d)
        d.view.transcript.focus()
        await d.pilot.press(key)
        assert "being written" in d.drawn(d.view.notice)
        assert said(d) == before


async def an_edit_that_cannot_be_sent_yet_stays_in_the_prompt(d: Driver) -> None:
    await two_questions(d)
    await d.say("question 3")
    await d.reply(upto=3, finish=False)
    d.view.replies.edit()
    d.view.prompt.write("question 3b")
    await d.pilot.press("enter")
    assert d.view.prompt.text == "question 3b"
    assert said(d)[-2] == "question 3"


async def switching_where_nothing_else_was_said_explains_itself(d: Driver) -> None:
    await two_questions(d)
    d.view.transcript.focus()
    await d.pilot.press("right_square_bracket")
    assert "nothing else was said here" in d.drawn(d.view.notice)


async def test_a_branch_that_is_shorter_than_the_page_begins_at_its_top():
    async with driving((80, 24)) as d:
        await d.say("hi")
        await d.reply()
        await d.say("/retry")
        await d.reply("short")
        await d.pilot.pause()
        assert d.view.transcript.scroll_y == 0
        assert d.view.transcript.views[0].region.y <= 2


async def after_switching_branches_the_tree_is_that_of_the_branch(d: Driver) -> None:
    await d.say("hi")
    first = await d.reply("one two three four five six seven")
    await d.say("/retry")
    second = await d.reply("other words for the same thing")
    assert d.app.chat.rounds[-1].pieces == second[-1].pieces
    d.view.transcript.focus()
    await d.pilot.press("left_square_bracket")
    await d.settle()
    assert [round.pieces for round in d.app.chat.rounds] == [round.pieces for round in first]
    await d.pilot.press("right_square_bracket")
    await d.settle()
    assert [round.pieces for round in d.app.chat.rounds] == [round.pieces for round in second]


async def test_branches_of_a_chat():
    await in_one_app(
        another_answer_stands_beside_the_first_and_brackets_switch,
        an_earlier_answer_is_given_again_and_what_followed_comes_back_with_the_old_one,
        a_question_asked_differently_is_another_branch,
        escape_leaves_an_edit_and_the_chat_as_it_was,
        fork_says_something_else_at_once,
        an_edit_that_cannot_be_sent_yet_stays_in_the_prompt,
        switching_where_nothing_else_was_said_explains_itself,
        after_switching_branches_the_tree_is_that_of_the_branch,
    )
