"""A reply that repeats itself says so, with the key that stops it; one that only resembles itself does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import driving
from hypothesis import given
from hypothesis import strategies as st

from specchat.tui.state.turn import repeats_itself

VERSE = "The sea is blue, and the sky is wide.\n"


@pytest.mark.parametrize(
    "text",
    [
        "A poem.\n" + VERSE * 8,
        "".join(f"{day}. Monday is a good day to work.\n" for day in range(20)),
        "| 1 | 2 |\n" * 40,
    ],
    ids=["verse", "numbered", "table"],
)
def test_the_same_words_again_and_again_are_noticed_wherever_the_text_is_cut(text):
    assert all(repeats_itself(text[: len(text) - cut]) for cut in range(20))


@pytest.mark.parametrize(
    "text", ["", VERSE * 2, VERSE * 8 + "But then the wind began to turn around.", "word " * 3, " " * 2_000]
)
def test_a_refrain_or_an_end_of_it_is_no_repetition(text):
    assert not repeats_itself(text)


def test_this_projects_own_pages_do_not_repeat_themselves():
    for page in Path(__file__).parents[2].glob("docs/*.md"):
        text = page.read_text()
        assert not any(repeats_itself(text[:end]) for end in range(0, len(text), 500)), page


@given(st.text(min_size=80, max_size=300), st.text(max_size=100))
def test_any_piece_four_times_over_is_found(piece, before):
    if piece.strip() and not piece.isdecimal():
        assert repeats_itself(before + piece * 4)


async def test_the_reply_is_said_to_repeat_itself_with_the_key_that_stops_it():
    async with driving() as d:
        await d.say("hi")
        await d.reply(VERSE * 12, finish=False)
        assert "the reply repeats itself · Esc stops it" in d.drawn(d.view.notice)
