"""Messages of a training in its own process, one JSON object per line with its `type`; and its results in words."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from specchat.config.file_reading import UNREADABLE
from specchat.engine.protocol.bounds import Name, Rate, Seconds, Share, Whole, Words
from specchat.engine.protocol.events import GuessChange
from specchat.engine.protocol.text import one_line
from specchat.training import StageName

LONGEST_REPORT_BYTES = 1 << 18
"""One report, at most; the longest real ones carry a curve of some fifty points."""

STAGES = ("loading", "replies", "states", "learning", "measuring")
"""The stages of a training, in their order."""

PLAIN, DEFAULT = "plain", "default"
"""The two ways that every verdict measures first: plain decoding, and the pair's default."""

Tau = Annotated[float, Meta(ge=1, le=64)]
Ratio = Annotated[float, Meta(ge=0, le=1e6)]
Shares = Annotated[list[Share], Meta(max_length=64)]
Setting = bool | Whole | float | Name


class Needed(Struct, frozen=True, tag_field="type", tag="needed"):
    """Disk and memory that the training takes, said before the first text is written."""

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
    changed: Annotated[list[GuessChange], Meta(max_length=16)] = []  # by learning, in a text never learnt from


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


_BAR = 40


def table_lines(judged: Judged) -> list[str]:
    """Each way with its ratio to plain decoding, the range of that, and its mean tokens a round."""
    wide = max(len(way.name) for way in judged.ways)
    return [f"{'':{wide}}  × plain  (95 %)       τ", *(_table_line(way, wide) for way in judged.ways)]


def verdict_line(judged: Judged, name: str, pair: str) -> str:
    """Which way is the quickest; `name` is the trained drafter's."""
    ratios = {way.name: way.ratio for way in judged.ways}
    default = ratios.get(DEFAULT, 0.0)
    if not judged.best:
        return f"{pair}'s default stays the quickest: {default:.2f} × plain; nothing was changed"
    said = f"quickest: {name} {judged.best}, {ratios[judged.best]:.2f} × plain, {pair}'s default {default:.2f} ×"
    lengths = {way.name: way.tau for way in judged.ways}
    before, after = lengths.get(DEFAULT), lengths[judged.best]
    if before is None or after is None:
        return said
    return f"{said}; τ {before:.2f} → {after:.2f} on questions that it did not learn from"


def learnt_lines(trained: Trained) -> list[str]:
    """What learning did on texts that were never learnt from: τ before and after, and some guesses that changed."""
    before = trained.curve.tau[0] if trained.curve.tau else 1.0
    lines = [f"on texts it never learnt from: τ {before:.2f} → {trained.tau:.2f} by learning, in chains of 4"]
    if trained.changed:
        lines.append("guesses there that learning changed:")
    for one in trained.changed:
        behind, guessed, now, wrote = (one_line(repr(text)) for text in (one.behind, one.before, one.now, one.wrote))
        lines.append(f"after {behind}: {guessed} before, {now} now; the target wrote {wrote}")
    return lines


def curve_lines(curve: Curve, most: int = 64) -> list[str]:
    """τ over the tokens seen, as bars of text: at most so many points, the last one among them."""
    step = -(-len(curve.points) // most)
    points = list(curve.points) if step <= 1 else list(reversed(curve.points[::-1][::step]))
    scale = _BAR / max(max((tau for _, tau in points), default=1.0) - 1.0, 1e-9)
    return [f"{tokens:>11,}  {tau:.2f}  {'█' * round((tau - 1.0) * scale)}".rstrip() for tokens, tau in points]


def span(seconds: float) -> str:
    """A time to wait, roughly: `40 s`, `25 min`, `2.5 h`."""
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _table_line(way: MeasuredWay, wide: int) -> str:
    between = "" if way.low is None or way.high is None else f"{way.low:.2f}–{way.high:.2f}"
    tau = "" if way.tau is None else f"{way.tau:.2f}"
    wrong = "" if way.same_text else "  its texts are not the target's own"
    return f"{way.name:{wide}}  {way.ratio:7.2f}  {between:11}  {tau:>4}{wrong}".rstrip()
