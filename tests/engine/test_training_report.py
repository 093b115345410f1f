"""What a training says to the program that started it: read as it was written, refused where it is wrong."""

import msgspec
import pytest

from specchat.engine.protocol.training_report import (
    LONGEST_REPORT_BYTES,
    Curve,
    Judged,
    MeasuredWay,
    Needed,
    Reached,
    Trained,
    decode_report,
    encode_report,
    verdict_line,
)

CURVE = Curve([0, 900], [1.0, 1.25])
SETTINGS = {"drafter": "hydra", "nodes": 8, "hydra.weights": "mine", "merge.sure": 0.5, "think": True}


@pytest.mark.parametrize(
    "report",
    [
        Needed(2_700_000, 3_300_000_000, 1_100_000_000),
        Reached("loading", 0, 0, "reading weights"),
        Reached("learning", 0.5, 1.0, "τ 1.25", 12.5, 1.25, [0.2, 0.5]),
        Trained("mine", "hydra", "tiny", "/folder", 5, False, 900, 1.25, [0.2], CURVE),
        Judged([MeasuredWay("plain", 1.0), MeasuredWay("alone", 1.4, 1.2, 1.6, 1.9)], "alone", SETTINGS),
        Judged([MeasuredWay("plain", 1.0, same_text=False)]),
    ],
)
def test_a_report_is_read_as_it_was_written(report):
    line = encode_report(report)
    assert line.count(b"\n") == 1
    assert decode_report(line) == report


@pytest.mark.parametrize(
    "line",
    [
        b"a library prints",
        b"[]",
        b'{"type":"hello"}',
        b'{"type":"reached","stage":"tea","done":0,"total":1}',
        b'{"type":"reached","stage":"states","done":-1,"total":1}',
        b'{"type":"reached","stage":"states","done":1,"total":1,"tau":0.5}',
        b'{"type":"judged","ways":[]}',
        b'{"type":"judged","ways":[{"name":"a","ratio":1}],"best":"b","settings":{"nodes":1}}',
        b'{"type":"judged","ways":[{"name":"a","ratio":1}],"best":"a"}',
        b'{"type":"needed","weights":1,"disk_bytes":"much","memory_bytes":1}',
        b'"' + b"x" * LONGEST_REPORT_BYTES + b'"',
        b"[" * 5000,
    ],
)
def test_a_line_that_is_no_report_is_refused_in_one_line(line):
    with pytest.raises(msgspec.DecodeError) as refused:
        decode_report(line)
    assert "\n" not in str(refused.value)


def test_a_curve_has_a_measurement_for_each_number_of_tokens():
    line = encode_report(Trained("mine", "hydra", "tiny", "/folder", 5, True, 900, 1.25, [0.2], CURVE))
    with pytest.raises(msgspec.DecodeError, match="2 numbers of tokens for 1 measurements"):
        decode_report(line.replace(b"[1.0,1.25]", b"[1.0]"))


def test_the_verdict_says_tokens_a_round_before_and_after_where_both_were_measured():
    known = Judged([MeasuredWay("default", 1.32, tau=1.6), MeasuredWay("alone", 1.4, tau=2.1)], "alone", SETTINGS)
    ends = "τ 1.60 → 2.10 on questions that it did not learn from"
    assert verdict_line(known, "mine", "smol").endswith(ends)
    unknown = Judged([MeasuredWay("default", 1.32), MeasuredWay("alone", 1.4, tau=2.1)], "alone", SETTINGS)
    assert "τ" not in verdict_line(unknown, "mine", "smol")
