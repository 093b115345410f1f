"""What a training in a process of its own says: one JSON object per line, each with its `type`, checked here alone."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from specchat.config.file_reading import UNREADABLE
from specchat.engine.protocol.bounds import Name, Rate, Seconds, Share, Whole, Words
from specchat.engine.protocol.text import one_line
from specchat.training import StageName

LONGEST_REPORT_BYTES = 1 << 18
"""One report, at most; the longest real ones carry a curve of some fifty points."""

STAGES = ("loading", "replies", "states", "learning", "measuring")
"""The stages of a training, in their order."""

PLAIN, DEFAULT = "plain", "default"
"""What every verdict measures first: plain decoding, and what the pair starts with."""

Tau = Annotated[float, Meta(ge=1, le=64)]
Ratio = Annotated[float, Meta(ge=0, le=1e6)]
Shares = Annotated[list[Share], Meta(max_length=64)]
Setting = bool | Whole | float | Name


class Needed(Struct, frozen=True, tag_field="type", tag="needed"):
    """What the training takes, said before the first text is written."""

    weights: Whole  # numbers that are learnt
    disk_bytes: Whole
    memory_bytes: Whole


class Reached(Struct, frozen=True, tag_field="type", tag="reached"):
    """How far a stage is: `done` of `total`. `left_s` is how long the stage still takes, where that is known.

    While it learns, `tau` and `by_depth` are those of texts that are never learnt from.
    """

    stage: StageName
    done: Rate
    total: Rate
    says: Words = ""
    left_s: Seconds | None = None
    tau: Tau | None = None
    by_depth: Shares = []


class Curve(Struct, frozen=True):
    """τ on texts that are never learnt from, by tokens seen."""

    tokens: Annotated[list[Whole], Meta(max_length=10_000)]
    tau: Annotated[list[Tau], Meta(max_length=10_000)]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.tau):
            raise ValueError(f"{len(self.tokens)} numbers of tokens for {len(self.tau)} measurements")

    @property
    def points(self) -> list[tuple[int, float]]:
        return list(zip(self.tokens, self.tau, strict=True))


class Trained(Struct, frozen=True, tag_field="type", tag="trained"):
    """A drafter lies in its folder. `complete` is false where learning was stopped: then it is the best so far."""

    name: Name
    method: Name
    target: Name
    folder: Name
    size: Whole
    complete: bool
    tokens_seen: Whole
    tau: Tau
    by_depth: Shares
    curve: Curve


class MeasuredWay(Struct, frozen=True):
    """One way to draft, against plain decoding: the ratio of times with its 95 % range, and mean tokens a round."""

    name: Name
    ratio: Ratio
    low: Ratio | None = None
    high: Ratio | None = None
    tau: Tau | None = None
    same_text: bool = True  # false where its texts are not the target's own


class Judged(Struct, frozen=True, tag_field="type", tag="judged"):
    """The verdict: every way that was measured, and what to set for the one that beat the pair's default, if any."""

    ways: Annotated[list[MeasuredWay], Meta(min_length=1, max_length=16)]
    best: Name = ""  # empty: the pair's default stays the quickest
    settings: dict[Name, Setting] = {}

    def __post_init__(self) -> None:
        if bool(self.best) != bool(self.settings) or (self.best and self.best not in {way.name for way in self.ways}):
            raise ValueError(f"the best way, {self.best!r}, is not one of those measured, or has no settings")


Report = Needed | Reached | Trained | Judged

_encoder = msgspec.json.Encoder()
_reports: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """One line, newline included."""
    return _encoder.encode(report) + b"\n"


def decode_report(line: bytes) -> Report:
    """A report from its line; raises msgspec.DecodeError where the line is not a report."""
    if len(line) > LONGEST_REPORT_BYTES:
        raise msgspec.DecodeError(f"the line is longer than {LONGEST_REPORT_BYTES:,} bytes")
    try:
        return _reports.decode(line)
    except UNREADABLE as error:
        raise msgspec.DecodeError(one_line(str(error))) from None
