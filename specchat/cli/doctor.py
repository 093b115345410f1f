"""`specchat doctor`: versions, device, threads, memory, disk, pairs; and what would be slow here, and why."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat import __version__
from specchat.cli.streams import table_width
from specchat.config import cache_dir
from specchat.config.directories import expanded
from specchat.engine.protocol.environment import engine_environment
from specchat.errors import InstallationError

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from specchat.decoding.pass_times import PassTime
    from specchat.tui.state.pair_list import PairInfo

_PACKAGES = ("torch", "transformers", "textual", "rich", "typer", "gguf", "huggingface_hub")
_LIBRARIES = ("torch", "tokenizers", "safetensors", "huggingface_hub", "gguf", "transformers")
"""Libraries that the engine cannot do without."""


def print_report() -> None:
    """Imports torch, in the environment an engine would have."""
    os.environ.update(engine_environment())
    from rich.console import Console
    from rich.table import Table

    from specchat.cli.pair_states import judged, known_pairs

    console = Console(file=sys.stdout, highlight=False, markup=False, width=table_width())
    pairs, broken = [judged(pair) for pair in known_pairs()], _broken()
    machine = () if broken else _machine()
    for title, rows in (("versions", _versions()), ("machine", machine), ("pairs", _pairs(pairs))):
        table = Table(box=None, show_header=False, pad_edge=False, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()
    if troubles := [*broken, *_troubles(pairs)]:
        console.print("what does not work, and why", style="bold red")
        for line in troubles:
            console.print(f"  ✕ {line}", soft_wrap=True, style="red")
        console.print()
    if broken:
        return
    advice = list(_advice())
    console.print("what would be slow here, and why" if advice else "nothing here looks slow")
    for line in advice:
        console.print(f"  - {line}", soft_wrap=True)


def print_costs(settings: dict[str, Any], plot: Path | None) -> None:
    """Load the pair and print what a pass costs by its rows, and plain decoding by its context; draw it if asked to."""
    os.environ.update(engine_environment())
    from rich.console import Console
    from rich.table import Table

    from specchat.bench.configurations import load_pair, settings_in_force
    from specchat.bench.plots import Curve, accept_plot_file, draw_costs
    from specchat.decoding.pass_times import break_down, measure_plain
    from specchat.decoding.profiling import measure_costs
    from specchat.models.cpu_kernels.network import NativeNetwork
    from specchat.models.decoder.decoder import Decoder

    if plot is not None:
        plot = expanded(str(plot), "--plot")
        accept_plot_file(plot)
    pair = load_pair(settings_in_force(settings))
    draft = pair.draft.model if pair.draft else None
    plain, costs = measure_plain(pair.target.model), measure_costs(pair.target.model, draft, fits=pair.room_for_rows)
    assert costs is not None, "the measurement was not interrupted"
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 140)
    heading = f"{pair.name} · {pair.target.name} · {pair.precision} ({pair.target.kernels}) · {pair.device}"
    console.print(heading + "\n")
    curves: list[Curve] = [
        ("plain decoding, by context", "tokens", plain),
        ("verification, by rows", "rows", costs.verify),
    ]
    if costs.draft:
        curves.append(("a pass of the draft model, by rows", "rows", costs.draft))
    for title, unit, points in curves:
        table = Table(box=None, pad_edge=False, title=title, title_justify="left")
        for column in (unit, "ms", "× the first", ""):
            table.add_column(column, justify="left" if column == "" else "right")
        most = max(seconds for _, seconds in points)
        for place, seconds in points:
            ratio = seconds / points[0][1]
            table.add_row(str(place), f"{1000 * seconds:.1f}", f"{ratio:.2f}", "━" * round(40 * seconds / most))
        console.print(table)
        console.print()
    if isinstance(pair.target.model, Decoder) and isinstance(pair.target.model.network, NativeNetwork):
        console.print(_breakdown(break_down(pair.target.model, pair.target.model.network)))
    if plot is not None:
        draw_costs(heading, curves, plot)


def _breakdown(times: list[PassTime]) -> Table:
    """Passes as rows: their times, the floor under them, and what they are made of."""
    from rich.table import Table

    title = "where a pass's time goes, in ms; floors: each alone, at the rate measured in this run"
    parts = list(times[0].parts) if times else []
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for column in ("context", "rows", "ms", "× one row", "memory floor", "arithmetic floor", *parts):
        table.add_column(column, justify="right")
    for one in times:
        first = next(other for other in times if other.context_tokens == one.context_tokens)
        seconds = (one.memory_s, one.arithmetic_s, *one.parts.values())
        table.add_row(
            *(str(one.context_tokens), str(one.rows), f"{1000 * one.seconds:.2f}"),
            *(f"{one.seconds / first.seconds:.2f}", *(f"{1000 * value:.2f}" for value in seconds)),
        )
    return table


def _broken() -> list[str]:
    """The libraries of the engine that cannot be loaded, and why."""
    found = []
    for library in _LIBRARIES:
        try:
            importlib.import_module(library)
        except (ImportError, OSError) as error:
            found.append(str(InstallationError.of(error, library)))
    return found


def _versions() -> Iterator[tuple[str, str]]:
    yield "specchat", __version__
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for package in _PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed"


def _machine() -> Iterator[tuple[str, str]]:
    import torch

    from specchat.models.hub.disk import free_disk_bytes
    from specchat.models.machine import (
        available_bytes,
        choose_device,
        choose_precision,
        default_threads,
        processor_name,
    )

    device = choose_device("auto")
    yield "device", f"{device} ({processor_name(device)})"
    for what, quantised in (("quantised files", True), ("other weights", False)):
        yield f"{what} run in", choose_precision("auto", device, quantised, own=True)
    yield "4 and 8 bits", _whole_numbers(device)
    yield "threads", f"{default_threads()} of {os.cpu_count()} cores, waiting {os.environ['OMP_WAIT_POLICY']}"
    free = available_bytes(device)
    yield "free memory", "unknown" if free is None else f"{free / 1e9:.1f} GB on {device}"
    yield "free disk", f"{free_disk_bytes(cache_dir()) / 1e9:.1f} GB for weights in {cache_dir()}"
    yield "compute", torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else ""
    if device.type == "cuda":
        from specchat.models.decoder.recorded_network import recording_notes

        yield "passes", "; ".join(recording_notes(device)) or "recorded as CUDA graphs, norms and rotations compiled"


def _whole_numbers(device: torch.device) -> str:
    """Which kernels multiply weights of 4 and 8 bits."""
    from specchat.compiled.build import NativeUnavailable, find_compiler
    from specchat.models.cpu_kernels.build import load
    from specchat.models.decoder.cuda_linear import grouped_product
    from specchat.models.machine import multiplies

    if device.type != "cpu":
        works = [precision for precision in ("int4", "int8") if multiplies(precision, device)]
        if not works:
            return f"neither int8 nor int4 runs on {device}"
        why = grouped_product(device)
        if not isinstance(why, str):
            return "a Triton kernel, for files of 4 to 8 bits"
        return f"torch's kernels, for {' and '.join(works)}; the Triton kernel is not in use: {why}"

    try:
        return f"native kernels, by {' '.join(find_compiler())}: {load().where}"
    except NativeUnavailable as error:
        return f"torch's kernels; the native ones are not in use, since {error}"


def _pairs(pairs: list[PairInfo]) -> Iterator[tuple[str, str, str]]:
    for pair in pairs:
        size = f", {pair.download_bytes / 1e6:.0f} MB" if pair.download_bytes else ""
        state = "ready" if pair.state == "ready" else "to verify" if pair.state == "unverified" else f"to fetch{size}"
        yield pair.name, "✕ cannot work" if pair.refusal else state, pair.summary


def _troubles(pairs: list[PairInfo]) -> Iterator[str]:
    """Pairs that cannot work, a draft model that cannot be used first of all."""
    for pair in pairs:
        if pair.refusal:
            yield f"{pair.name}: {pair.refusal}"
        elif pair.short_of_memory() and pair.needed_bytes is not None and pair.free_bytes is not None:
            needed, free = pair.needed_bytes / 1e9, pair.free_bytes / 1e9
            yield f"{pair.name}: needs about {needed:.1f} GB of memory, and {free:.1f} GB are free now"


def _advice() -> Iterator[str]:
    import torch

    from specchat.models.machine import choose_device, native_bfloat16, unused_card

    device = choose_device("auto")
    if device.type == "cpu":
        if card := unused_card():
            yield card
        elif torch.backends.mps.is_available():
            yield "everything runs on the processor; --device mps takes Apple's GPU, in float32, and was never measured"
        else:
            yield "no CUDA device: models above about 2 billion parameters will be slow on the processor"
        if not native_bfloat16(device):
            yield "this processor does not compute bfloat16 natively: weights take twice the memory in float32"
        if (os.cpu_count() or 1) <= 2:
            yield "two cores or fewer: the app and any other busy program compete with the engine"
    if device.type == "cuda" and not native_bfloat16(device):
        yield "this GPU emulates bfloat16; float32 is used and takes twice the memory"
