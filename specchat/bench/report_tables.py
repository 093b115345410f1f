"""A report as tables for the terminal, as one JSON object, or as a line for every reply."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from specchat.bench.measured_reply import Interval, Measured
from specchat.bench.report import ALL, Group, Report, Run
from specchat.engine.protocol.text import one_line


def report_tables(report: Report) -> RenderableType:
    parts: list[RenderableType] = []
    if not report.complete:
        parts += [Text("interrupted: this is what was measured so far", "yellow"), Text()]
    for run in report.runs:
        parts += [Text(_title(run), "bold"), _contestants(run), Text()]
        if len(_categories(run)) > 1:
            parts += [part for table in _by_category(run) for part in (table, Text())]
        parts += [*_depths(run), *_texts(run), *(Text(f"note: {one_line(note)}", "dim") for note in run.notes), Text()]
    if len(report.runs) > 1:
        parts += [_precisions(report), Text()]
    return Lines(*parts, *(Text(line, "dim") for line in _circumstances(report)))


def _title(run: Run) -> str:
    draft = f" + {run.draft}" if run.draft else ""
    return f"{run.pair}: {run.target}{draft} · {run.dtype} · {run.device} · {run.threads} threads"


def _contestants(run: Run) -> Table:
    """Everything together: one numbered line for each contestant."""
    energy = any(group.joules_per_token is not None for result in run.results for group in result.groups)
    columns = ["", "tok/s", "median", "× plain  (95 %)", "+prompt", "τ", "acc.", "draft/verify/other"]
    table = table_of(*columns, *(["J/tok"] if energy else []))
    for number, result in enumerate(run.results):
        group = result.group()
        if group is None:
            continue
        cells = [
            f"{group.tokens_per_s:.1f}",
            f"{group.median_tokens_per_s:.1f}",
            f"{group.ratio.value:.2f}  {range_text(group.ratio):>9}",
            f"{group.with_prompt.value:.2f}",
            _maybe(group.acceptance_length),
            _percent(group.acceptance_rate),
            _split(group),
        ]
        joules = [_maybe(group.joules_per_token)] if energy else []
        name = Text(f"{number}\u00a0{result.name}", "dim" if result.kind == "peer" else "")
        table.add_row(name, *cells, *joules)
    return table


_SIDE_BY_SIDE = 4
"""Contestants whose columns fit into 80 characters, beside those of the categories."""


def _by_category(run: Run) -> Iterator[Table]:
    """Plain's speed, and each contestant's ratio to it with its τ, category by category; numbers as above."""
    others = [(number, result) for number, result in enumerate(run.results) if result.kind != "plain"]
    for first in range(0, max(1, len(others)), _SIDE_BY_SIDE):
        some = others[first : first + _SIDE_BY_SIDE]
        heads = (f"{number} ×" if result.kind == "peer" else f"{number} ×  τ" for number, result in some)
        table = table_of("category", "replies", "plain tok/s", *heads)
        for category in _categories(run):
            plain = run.plain.group(category) if run.plain else None
            if plain is None:
                continue
            cells = [_ratio_cell(result.group(category)) for _, result in some]
            table.add_row(category, str(plain.replies), f"{plain.tokens_per_s:.1f}", *cells)
        yield table


def _ratio_cell(group: Group | None) -> str:
    if group is None:
        return ""
    return f"{group.ratio.value:.2f}  {_maybe(group.acceptance_length)}".rstrip()


def _depths(run: Run) -> Iterator[Text]:
    """Acceptance by depth, one line for each contestant that drafts."""
    for result in run.results:
        group = result.group()
        if group is not None and group.acceptance_by_depth:
            shares = " ".join(f"{100 * share:.0f}" for share in group.acceptance_by_depth)
            yield Text(f"{result.name}: accepted by depth, % of the rounds that drafted so deep: {shares}")


def _texts(run: Run) -> Iterator[Text]:
    for result in run.results:
        same = result.same_text
        if same is None:
            continue
        line = f"{result.name}: {same.equal} of {same.total} replies are plain's, token by token"
        yield Text(line if same.promised else f"{line} (this rule does not promise it)", "" if same.ok else "bold red")
        for divergence in same.divergences[:3]:
            margin = divergence.margin
            verdict = "a tie" if divergence.tie else "NOT a tie"
            where = f"{divergence.question_id}, turn {divergence.turn + 1}, token {margin.place}"
            limits = f"margin {margin.gap:.3g}, {verdict} (passes differ by up to {divergence.allowed:.3g})"
            yield Text(f"  first difference at {where}: {limits}")


def _precisions(report: Report) -> Table:
    """Plain and the first configuration in every precision, against plain there and against the fastest plain."""
    table = table_of("precision", "plain tok/s", "first", "tok/s", "× plain", "× fastest plain", "perplexity", "memory")
    plains = [group for run in report.runs if run.plain and (group := run.plain.group())]
    fastest = max((group.tokens_per_s for group in plains), default=0.0)
    for run in report.runs:
        plain = run.plain.group() if run.plain else None
        first = next((result for result in run.results if result.kind == "ours"), None)
        group = first.group() if first else None
        if plain is None:
            continue
        table.add_row(
            run.dtype,
            f"{plain.tokens_per_s:.1f}",
            first.name if first else "",
            f"{group.tokens_per_s:.1f}" if group else "",
            f"{group.ratio.value:.2f}" if group else "",
            f"{group.tokens_per_s / fastest:.2f}" if group and fastest else "",
            f"{run.perplexity.value:.3f}" if run.perplexity else "",
            _memory(run),
        )
    return table


def _circumstances(report: Report) -> Iterator[str]:
    about = report.circumstances
    device = about.accelerator or about.processor
    busy = f", load {about.load_average:.1f}" if about.load_average is not None else ""
    memory = f", {about.memory_bytes / 1e9:.0f} GB" if about.memory_bytes else ""
    yield f"{device}, {about.cores} cores{memory}{busy} · {about.system}"
    yield " · ".join(f"{name} {version}" for name, version in about.versions.items())
    sampling = "greedy" if not report.settings["temperature"] else f"temperature {report.settings['temperature']}"
    most = report.settings["max_tokens"]
    yield f"{report.questions} questions of {report.workload}, at most {most} tokens each, {sampling}"
    for run in report.runs:
        surprise = f", perplexity {run.perplexity.value:.3f}" if run.perplexity else ""
        yield f"{run.dtype}: peak memory {_memory(run)}, loaded in {run.load_s:.1f} s{surprise}"
    yield f"{about.made}{f' · commit {about.commit}' if about.commit else ''} · {about.command}"


def _memory(run: Run) -> str:
    cuda = f", {run.memory.cuda_bytes / 1e9:.2f} GB on the device" if run.memory.cuda_bytes is not None else ""
    return f"{run.memory.resident_bytes / 1e9:.2f} GB{cuda}"


def _categories(run: Run) -> list[str]:
    return [group.category for group in run.plain.groups if group.category != ALL] if run.plain else []


def table_of(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if place == 0 else "right", no_wrap=place > 0, overflow="fold")
    return table


def range_text(interval: Interval) -> str:
    return "" if interval.low is None or interval.high is None else f"{interval.low:.2f}–{interval.high:.2f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _maybe(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _split(group: Group) -> str:
    shares = (group.draft_share, group.verify_share, group.other_share)
    return "" if None in shares else "/".join(f"{100 * (share or 0.0):.0f}" for share in shares) + " %"


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
