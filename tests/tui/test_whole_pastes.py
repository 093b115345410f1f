"""Pastes are read in one piece, as text, and nothing else is read differently."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual._xterm_parser import XTermParser
from textual.message import Message

from specchat.tui.textual_patches.fixed_app import WholePasteParser

START, END = "\x1b[200~", "\x1b[201~"

KEYS = st.sampled_from(["a", "Z", "\r", "\t", "\x1b[A", "\x1b[1;5C", "\x1b[I", "\x1b[<0;3;4M", "é", "漢"])
PASTED = st.text(st.characters(exclude_characters="\x1b"), max_size=40)
ESCAPES = st.text(st.sampled_from("\x1b[]OQ201~;mx\r\x03\x07"), max_size=80).filter(lambda text: END not in text)
INPUT = st.lists(KEYS | PASTED.map(lambda text: START + text + END), max_size=8).map("".join)


def told(parser: XTermParser, parts: list[str]) -> list[tuple[object, ...]]:
    return [seen(event) for part in parts if part for event in parser.feed(part)]


def seen(event: Message) -> tuple[object, ...]:
    values = {name: str(getattr(event, name, "")) for name in ("text", "key", "character", "x", "y", "button")}
    return (type(event), *values.values())


@given(INPUT, st.lists(st.integers(0, 400), max_size=6))
def test_however_input_is_cut_the_events_are_those_of_textual(text: str, cuts: list[int]):
    at = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    parts = [text[begin:end] for begin, end in pairwise(at)]
    assert told(WholePasteParser(), parts) == told(XTermParser(), [text])


@given(ESCAPES, st.lists(st.integers(0, 90), max_size=6))
def test_no_character_of_a_paste_is_a_key(text: str, cuts: list[int]):
    if (text + END).find(END) < len(text):
        return  # its end and the marker's beginning together are a marker
    whole = START + text + END
    at = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    parts = [whole[begin:end] for begin, end in pairwise(at)] + ["x"]
    parser = WholePasteParser()
    paste, key = (event for part in parts if part for event in parser.feed(part))
    assert (type(paste), paste.text) == (events.Paste, text)
    assert key.key == "x"


def test_a_paste_is_taken_in_runs_not_in_characters(monkeypatch: pytest.MonkeyPatch):
    fed = 0
    feed = XTermParser.feed

    def counted(self: XTermParser, data: str):
        nonlocal fed
        fed += len(data)
        return feed(self, data)

    monkeypatch.setattr(XTermParser, "feed", counted)
    text = "line\n" * 200_000
    whole = START + text + END + "x"
    parts = [whole[at : at + 4096] for at in range(0, len(whole), 4096)]
    parser = WholePasteParser()
    found = [event for part in parts for event in parser.feed(part)]
    assert [type(event) for event in found] == [events.Paste, events.Key]
    assert found[0].text == text  # type: ignore[attr-defined]
    assert fed < 50
