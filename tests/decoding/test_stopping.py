"""Stop strings end a reply where they are complete, whatever pieces the text comes in, and are never shown."""

from __future__ import annotations

import pytest
from contracts.kit import Letters
from hypothesis import given
from hypothesis import strategies as st

from specchat.decoding.emission import Emission, Limits, Stop, StopStrings

letters = st.text(st.sampled_from("ab\n"), min_size=1, max_size=4)
stops = st.lists(letters, max_size=3)
chunks = st.lists(st.text(st.sampled_from("ab\n"), max_size=5), max_size=12)


def streamed(pieces, strings) -> tuple[str, str | None]:
    stop = StopStrings(tuple(strings))
    shown = "".join(stop.add(piece) for piece in pieces)
    return (shown if stop.found is not None else shown + stop.finish()), stop.found


def first_complete(text, strings) -> tuple[str, str | None]:
    """A reader with a pencil: at every character, has one of the strings just ended? Of several the longest."""
    for end in range(len(text) + 1):
        ended = [s for s in strings if text[:end].endswith(s)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(chunks, stops)
def test_streamed_in_any_pieces_it_stops_where_the_whole_text_does(pieces, strings):
    assert streamed(pieces, strings) == first_complete("".join(pieces), strings)


@given(chunks, stops)
def test_nothing_of_a_stop_string_is_ever_shown(pieces, strings):
    shown, found = streamed(pieces, strings)
    assert all(s not in shown for s in strings)
    assert found is None or found in strings


@given(chunks, stops)
def test_no_text_is_held_back_that_cannot_begin_a_stop_string(pieces, strings):
    stop, shown, text = StopStrings(tuple(strings)), "", ""
    for piece in pieces:
        text += piece
        shown += stop.add(piece)
        if stop.found is not None:
            return
        held = text[len(shown) :]
        assert held == "" or any(s.startswith(held) and s != held for s in strings)


def test_without_stop_strings_everything_passes():
    assert streamed(["a", "", "b\n"], []) == ("ab\n", None)


def test_after_the_stop_nothing_passes():
    stop = StopStrings(("b",))
    assert [stop.add("ab"), stop.add("a"), stop.finish()] == ["a", "", ""]


@given(st.text(st.sampled_from("ABC"), min_size=1, max_size=12), st.lists(st.integers(1, 4), max_size=8))
def test_a_reply_ends_at_the_same_token_however_many_come_at_once(text, sizes):
    """Rounds emit one token or many; what a reply takes and shows does not depend on it."""
    tokens = [ord(c) - ord("A") for c in text]

    def taken(groups) -> tuple[list[int], str, Stop | None]:
        emission, shown = Emission(Letters(3, eos_ids={2}), Limits(9, 99, ("AAB", "BB"))), ""
        for group in groups:
            shown += "".join(emission.take(group))
        return emission.tokens, shown + emission.finish(), emission.ended

    groups, rest = [], tokens
    for size in sizes:
        groups, rest = [*groups, rest[:size]], rest[size:]
    assert taken([*groups, rest]) == taken([[token] for token in tokens])


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(2, 99), Stop.LENGTH),
        (Limits(99, 2), Stop.CONTEXT),
        (Limits(2, 2), Stop.LENGTH),
        (Limits(99, 99, ("AB",)), Stop.STOP),
    ],
    ids=str,
)
def test_why_a_reply_ended(limits, expected):
    emission = Emission(Letters(5), limits)
    assert len(emission.take([0, 1, 2, 3])) == 2
    assert emission.ended is expected
