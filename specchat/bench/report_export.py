"""A report as plain data: one JSON object, or a line for every measured reply."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from specchat.bench.measured_reply import Measured
from specchat.bench.report import Report


def report_json(report: Report) -> bytes:
    """The report with every measured reply: token ids, not texts."""
    runs = [
        {**plain_data(dataclasses.replace(run, measured=())), "measured": list(_replies(run.measured))}
        for run in report.runs
    ]
    data = {**plain_data(dataclasses.replace(report, runs=())), "ok": report.ok, "runs": runs}
    return msgspec.json.format(msgspec.json.encode(data))


def reply_lines(report: Report) -> Iterator[str]:
    """One JSON object for each measured reply."""
    for run in report.runs:
        for reply in _replies(run.measured):
            yield msgspec.json.encode({"pair": run.pair, "dtype": run.dtype, **reply}).decode()


def _replies(measured: tuple[Measured, ...]) -> Iterator[dict[str, Any]]:
    for reply in measured:
        data = plain_data(dataclasses.replace(reply, prompt=()))
        written = data.pop("written")
        written.pop("text")
        data["prompt"] = len(reply.prompt)
        yield {**data, **written}


def plain_data(value: Any) -> Any:
    """Dataclasses as plain values; JSON has no infinity, so a margin without a bound is null."""
    if isinstance(value, dict):
        return {str(key): plain_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(inner) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain_data(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return None if isinstance(value, float) and not math.isfinite(value) else value
