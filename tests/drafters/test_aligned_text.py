"""A text follows a reference: the next token is known, and found again behind a change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specchat.drafters.reference import AlignedText, Alignment

TEXT = [1, 2, 3, 4, 5, 6, 7, 1, 2, 9, 8]


def walked(aligned: AlignedText, tokens: list[int]) -> Alignment:
    at, before = Alignment(), None
    for token in tokens:
        at, before = aligned.advance(at, before, token), token
    return at


def expected_after(tokens: list[int]) -> int | None:
    aligned = AlignedText(TEXT)
    return aligned.next_token(walked(aligned, tokens))


def test_the_reference_itself_is_followed_token_by_token() -> None:
    for place, token in enumerate(TEXT):
        assert expected_after(TEXT[:place]) == token
    assert expected_after(TEXT) is None


def test_of_two_equal_runs_the_one_is_meant_where_the_text_stands() -> None:
    assert expected_after([1, 2]) == 3
    assert expected_after([1, 2, 3, 4, 5, 6, 7, 1, 2]) == 9


def test_behind_a_replaced_token_it_goes_on() -> None:
    assert expected_after([1, 2, 99]) is None
    assert expected_after([1, 2, 99, 4]) == 5


def test_behind_inserted_and_left_out_tokens_it_goes_on() -> None:
    assert expected_after([1, 2, 3, 98, 99, 97, 4]) == 5
    assert expected_after([1, 2, 5]) == 6


def test_a_single_token_far_away_is_no_agreement_but_two_are() -> None:
    aligned = AlignedText([*range(100, 140), 7, 8, 9])
    assert aligned.next_token(walked(aligned, [100, 7])) is None
    assert aligned.next_token(walked(aligned, [100, 7, 8])) == 9


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 4)))
def test_what_is_expected_is_always_a_token_of_the_reference(reference: list[int], text: list[int]) -> None:
    aligned = AlignedText(reference)
    expected = aligned.next_token(walked(aligned, text))
    assert expected is None or expected in reference
