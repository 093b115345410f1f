"""The rounds of one reply as a few bytes, to be stored with a chat, and back.

The bytes are a line that names the format and one JSON line per round, compressed. They may come from a file that
anyone wrote: `unpack_rounds` is the one place that checks them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from specchat.engine.protocol.codec import decode_event, encode
from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.round_parts import Timings, Tree

FORMAT = b"specchat rounds 1\n"

MOST_ROUNDS = 4096
LARGEST_TEXT_BYTES = 16 << 20
"""The most rounds of a reply, and bytes of their JSON; a forged file must take neither memory nor time."""

_WHOLE_TREES = (MOST_ROUNDS, 1024, 512, 256, 128, 0)
"""How many of the last rounds keep their whole tree: the first of these with which all rounds fit."""

_DIGITS = 3
_TIME_DIGITS = 5


def pack_rounds(rounds: Sequence[RoundDone], largest_bytes: int) -> bytes:
    """The rounds in at most so many bytes; empty where there are none.

    Where they do not fit, the earlier rounds keep only the accepted paths of their trees; where even those do not fit,
    the earlier half of the rounds is left out.
    """
    rounds = [_rounded(round) for round in rounds[-MOST_ROUNDS:]]
    while rounds:
        for whole in _WHOLE_TREES:
            first = max(0, len(rounds) - whole)
            text = FORMAT + b"".join(encode(path_only(r) if at < first else r) for at, r in enumerate(rounds))
            data = zlib.compress(text)
            if len(data) <= largest_bytes and len(text) <= LARGEST_TEXT_BYTES:
                return data
        rounds = rounds[(len(rounds) + 1) // 2 :]
    return b""


def unpack_rounds(data: bytes) -> list[RoundDone]:
    """The rounds in these bytes, each as consistent as one that an engine sends; their reply has the id 0.

    Raises:
        msgspec.DecodeError: `pack_rounds` did not write the bytes.
    """
    if not data:
        return []
    lines = _text_of(data).split(b"\n")[1:-1]
    if len(lines) > MOST_ROUNDS:
        raise msgspec.DecodeError(f"there are more than {MOST_ROUNDS} rounds")
    events = [decode_event(line) for line in lines]
    rounds = [replace(event, id=0) for event in events if isinstance(event, RoundDone)]
    if len(rounds) != len(events):
        raise msgspec.DecodeError("there is an event that is not a round")
    return rounds


def _text_of(data: bytes) -> bytes:
    """The text in compressed bytes, which may claim to be of any length."""
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, LARGEST_TEXT_BYTES)
    except zlib.error as error:
        raise msgspec.DecodeError(f"the rounds cannot be decompressed: {error}") from None
    if not reader.eof or not text.startswith(FORMAT):
        raise msgspec.DecodeError("the rounds have a format that this specchat does not read")
    return text


def _rounded(done: RoundDone) -> RoundDone:
    """The round with as many digits as are ever shown, which halves what is stored."""
    tree, times = done.tree, done.timings
    return replace(
        done,
        at_s=round(done.at_s, _TIME_DIGITS),
        tree=replace(
            tree,
            draws=[replace(draw, draft_logprob=_likelihood(draw.draft_logprob)) for draw in tree.draws],
            target_logprob=[_likelihood(value) for value in tree.target_logprob],
        ),
        verdict=replace(done.verdict, bonus_logprob=_likelihood(done.verdict.bonus_logprob)),
        timings=Timings(*(round(value, _TIME_DIGITS) for value in (times.draft_s, times.verify_s, times.other_s))),
    )


def _likelihood(logprob: float | None) -> float | None:
    return None if logprob is None else round(logprob, _DIGITS)


def path_only(round: RoundDone) -> RoundDone:
    """The round with a tree of its accepted path alone."""
    tree, path = round.tree, round.verdict.path
    kept = [0, *path]
    place = {node: at for at, node in enumerate(kept)}
    return replace(
        round,
        tree=Tree(
            [tree.tokens[node] for node in kept],
            list(range(-1, len(path))),
            [tree.texts[node] for node in kept],
            [replace(draw, child=place[draw.child]) for draw in tree.draws if draw.child in place],
            [tree.target_logprob[node] for node in kept],
        ),
        verdict=replace(round.verdict, path=list(range(1, len(kept))), reasons=["accepted"] * len(kept)),
    )
