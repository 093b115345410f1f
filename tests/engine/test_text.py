"""Text from a model cannot steer the terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.protocol.text import visible

anything = st.text(st.characters(codec=None))


@given(anything)
def test_no_control_character_survives_but_tab_and_newline(text):
    shown = visible(text)
    assert all(unicodedata.category(c) not in {"Cc", "Cs"} or c in "\t\n" for c in shown)
    assert "\n".join(shown.splitlines()) == shown.removesuffix("\n")


@given(anything, st.integers(0, 50))
def test_pieces_read_the_same_as_the_whole(text, at):
    assert visible(text[:at]) + visible(text[at:]) == visible(text)


def test_an_escape_sequence_is_shown_and_not_obeyed():
    assert visible("\x1b[31mred\x1b]0;title\x07\x7f\x9b") == "␛[31mred␛]0;title␇␡⟨9b⟩"
    assert visible("a\u202eb\r\n\tc") == "a⟨202e⟩b␍\n\tc"


def test_ordinary_text_of_any_script_is_left_alone():
    text = "Grüße, 你好, שלום, 👩‍👩‍👧, e\u0301\tx\n"
    assert visible(text) == text
