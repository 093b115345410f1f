"""Memory of a head's output between passes: used again, but never while somebody may see it."""

from __future__ import annotations

import pytest

from specchat.core.request import FIRST
from specchat.models.cpu_kernels.logits_buffer import BEST, FEW, LogitsBuffer, SpareMemory

WIDTH = 100


def reads(said, rows, tokens):
    return []


def room(spare, rows, **asked):
    return LogitsBuffer(rows, WIDTH, reads, spare, **asked)


@pytest.mark.parametrize("rows", [1, FEW, FEW + 1, 60])
def test_memory_that_nobody_sees_is_used_again(rows):
    spare = SpareMemory(WIDTH)
    first = room(spare, rows)
    place = first.asked[4]
    del first
    assert room(spare, rows).asked[4] == place
    assert room(spare, max(1, rows - 1)).rows == max(1, rows - 1)


@pytest.mark.parametrize("rows", [1, FEW + 1])
def test_logits_that_somebody_saw_are_never_written_over(rows):
    spare = SpareMemory(WIDTH)
    first = room(spare, rows)
    logits, place = first.logits.fill_(7.0), first.asked[4]
    del first
    assert room(spare, rows).asked[4] != place
    assert logits.eq(7.0).all()


def test_a_piece_for_many_rows_serves_fewer_and_the_largest_is_kept():
    spare = SpareMemory(WIDTH)
    large = room(spare, 60)
    small, place = room(spare, 9), large.asked[4]
    del large, small
    assert room(spare, 30).asked[4] == place


def test_a_very_large_piece_is_given_back(monkeypatch):
    monkeypatch.setattr("specchat.models.cpu_kernels.logits_buffer._LARGE", 50 * WIDTH)
    spare = SpareMemory(WIDTH)
    room(spare, 51)
    assert spare._large is None
    room(spare, 50)
    assert spare._large.floats == 50 * WIDTH


def test_compiled_code_finds_what_is_named_where_all_of_it_was_asked_for():
    said = room(SpareMemory(WIDTH), 2, highest=True, logsumexp=True)
    named = said.in_memory
    assert (named.width, named.named) == (WIDTH, BEST)
    assert named.highest == said.highest.data_ptr()
    assert named.logsumexp == said.logsumexp.data_ptr()
    assert named.likeliest == said.likeliest.data_ptr()
    assert room(SpareMemory(WIDTH), 2, highest=True).in_memory is None
    assert LogitsBuffer(2, BEST - 1, reads, SpareMemory(9), highest=True, logsumexp=True).in_memory is None


def test_a_row_is_drawn_from_where_it_lies_and_its_memory_is_used_again():
    spare = SpareMemory(WIDTH)
    said = room(spare, 3)
    place = said.asked[4]
    assert said.row_in_memory(2)[:2] == (place + 2 * 4 * WIDTH, WIDTH)
    del said
    said = room(spare, 3)
    assert said.asked[4] == place
    assert said.row_in_memory(1).tensor().data_ptr() == said.logits[1].data_ptr()
    assert LogitsBuffer(3, WIDTH, reads, spare, FIRST, (8, reads)).row_in_memory is None
