"""The rounds of a reply come back as they were, in few bytes, and bytes from elsewhere are refused."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
import contextlib

from fake import rounds_of, started

from specchat.engine.protocol import packed_rounds
from specchat.engine.protocol.codec import encode
from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.packed_rounds import FORMAT, pack_rounds, unpack_rounds
from specchat.engine.protocol.round_parts import Source

ROOM = 1 << 20
FULL = pack_rounds(rounds_of(), ROOM)


def accepted_texts(round: RoundDone) -> list[str]:
    return [round.tree.texts[node] for node in round.verdict.path]


def to_the_shown_digits(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: to_the_shown_digits(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [to_the_shown_digits(inner) for inner in value]
    return round(value, 3) if isinstance(value, float) else value


def packed(*lines: bytes, format: bytes = FORMAT) -> bytes:
    return zlib.compress(format + b"".join(lines))


def test_rounds_come_back_as_they_were_as_those_of_no_reply_in_particular():
    rounds = rounds_of(id=5)
    back = unpack_rounds(pack_rounds(rounds, ROOM))
    wanted = [replace(round, id=0) for round in rounds]
    assert to_the_shown_digits(msgspec.to_builtins(back)) == to_the_shown_digits(msgspec.to_builtins(wanted))
    assert unpack_rounds(pack_rounds(back, ROOM)) == back
    assert unpack_rounds(pack_rounds([], ROOM)) == []


def test_the_sources_of_copied_tokens_are_kept_even_where_only_the_path_is():
    round = max(rounds_of(), key=lambda round: len(round.verdict.path))
    copied = replace(round.pieces[0], source=Source(0, "assistant", 2, "so it"))
    round = replace(round, pieces=[copied, *round.pieces[1:]])
    for kept in (round, packed_rounds.path_only(round)):
        (back,) = unpack_rounds(pack_rounds([kept], ROOM))
        assert back.pieces == round.pieces


def test_likelihoods_keep_the_digits_that_are_shown():
    round = rounds_of()[3]
    fine = replace(
        round, tree=replace(round.tree, target_logprob=[None, *[-0.123456789] * (len(round.tree.texts) - 1)])
    )
    (back,) = unpack_rounds(pack_rounds([fine], ROOM))
    assert back.tree.target_logprob[1:] == [-0.123] * (len(round.tree.texts) - 1)


@pytest.mark.parametrize("share", [0.8, 0.4, 0.08])
def test_where_there_is_little_room_earlier_rounds_keep_their_paths_alone_and_then_are_left_out(share):
    rounds = rounds_of(" ".join(f"word{n}" for n in range(2000)))
    room = int(len(pack_rounds(rounds, 1 << 24)) * share)
    data = pack_rounds(rounds, room)
    assert room / 3 < len(data) <= room
    back = unpack_rounds(data)
    assert [round.pieces for round in back] == [round.pieces for round in rounds[-len(back) :]]
    assert [accepted_texts(round) for round in back] == [accepted_texts(round) for round in rounds[-len(back) :]]
    assert (len(back) == len(rounds)) == (share == 0.8), "no round is left out while its path fits"
    if share == 0.8:
        assert len(back[0].tree.texts) == len(back[0].verdict.path) + 1
        assert back[-1].tree.texts == rounds[-1].tree.texts


def test_a_round_that_is_larger_than_the_room_is_left_out():
    assert pack_rounds(rounds_of()[:1], 40) == b""


@pytest.mark.parametrize(
    "data",
    [
        b"no bytes of ours",
        FULL[:-9],
        FULL + b"more" + FULL[:40],
        packed(format=b"specchat rounds 2\n"),
        packed(b"no JSON\n"),
        packed(encode(started([], 1))),
        packed(encode(rounds_of()[0]).replace(b'"parents":[-1,0', b'"parents":[-1,7')),
        packed(*[encode(rounds_of()[0])] * (packed_rounds.MOST_ROUNDS + 1)),
        packed(b" " * (packed_rounds.LARGEST_TEXT_BYTES + 1)),
    ],
    ids=["bytes", "cut", "longer", "format", "text", "other event", "contradiction", "too many", "too long"],
)
def test_bytes_that_are_no_rounds_are_refused(data):
    if data.startswith(FULL):
        assert unpack_rounds(data) == unpack_rounds(FULL), "what follows is never read"
        return
    with pytest.raises(msgspec.DecodeError):
        unpack_rounds(data)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_are_read_or_refused_and_nothing_else(data):
    damaged = bytearray(FULL)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(msgspec.DecodeError):
        assert all(isinstance(round, RoundDone) for round in unpack_rounds(bytes(damaged)))
