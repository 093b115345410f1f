"""The line that tells of loading, by width: what matters most stays."""

from __future__ import annotations

import pytest

from specchat.engine.protocol.events import Loading
from specchat.tui.text.cells import width_of
from specchat.tui.text.numbers import loading_line

FETCHING = Loading("fetch", "SmolLM2-135M-Instruct.Q4_1.gguf", 40_000_000, 98_400_000, 26.6e6)
ONCE = Loading("read", "smollm2-135m-instruct: converting tokenizer · compiling kernels, once", unit="steps")
KNOWN = Loading("read", "smollm2-135m-instruct: configuration", 3_000, 20_000, unit="ms")
EVENTS = (FETCHING, ONCE, KNOWN, Loading("import", "torch", unit="steps"), Loading("fetch", "x" * 60, 9, 10, 0.001))
ESC = "Esc cancels"


def told(event: Loading, width: int, cancels: str = ESC) -> str:
    return "".join(text for text, _ in loading_line(event, width, cancels))


@pytest.mark.parametrize(
    ("event", "width", "line"),
    [
        (FETCHING, 136, "fetching SmolLM2-135M-Instruct.Q4_1.gguf  %s 41 %% 40.0 MB of 98.4 MB · 26.6 MB/s · 2 s left"),
        (FETCHING, 76, "fetching SmolLM2-…  %s 41 %% 40.0 MB of 98.4 MB · 2 s left"),
        (FETCHING, 40, "fetching   41 %% 2 s left"),
        (ONCE, 116, "reading smollm2-135m-instruct: converting tokenizer · compiling kernels, once"),
        (ONCE, 76, "reading: converting tokenizer · compiling kernels, once"),
        (ONCE, 56, "reading: converting tokenizer"),
        (KNOWN, 116, "reading smollm2-135m-instruct: configuration  %s 15 %% about 17 s left"),
        (KNOWN, 76, "reading: configuration  %s 15 %% about 17 s left"),
    ],
)
def test_in_a_narrow_window_names_and_rates_are_left_out_before_what_is_done_and_how_long_it_takes(event, width, line):
    before, _, after = line.partition("%s")
    said = told(event, width)
    assert said.startswith(before.replace("%%", "%"))
    assert after.replace("%%", "%") in said
    assert said.endswith(ESC)


@pytest.mark.parametrize("event", EVENTS)
def test_no_line_is_wider_than_the_window_and_a_wider_window_never_shows_less(event):
    for width in range(1, 160):
        assert width_of(loading_line(event, width, ESC)) <= width
    for part in ("%", " left", ESC):
        shown = [part in told(event, width) for width in range(20, 160)]
        assert shown == sorted(shown), part


def test_without_a_key_that_cancels_there_is_more_room():
    assert "26.6 MB/s" not in told(FETCHING, 80)
    assert "26.6 MB/s" in told(FETCHING, 80, "")
