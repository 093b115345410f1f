"""Progress of loading in words, the same in the app and on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specchat.engine.protocol.events import Loading, Ready

_STAGES = {"import": "starting", "fetch": "fetching", "verify": "checking", "read": "reading", "measure": "measuring"}


def stage_text(stage: str, item: str) -> str:
    """`fetching model.gguf`."""
    return f"{_STAGES.get(stage, stage)} {item}".strip()


def loading_text(event: Loading) -> str:
    return stage_text(event.stage, event.item)


def loading_wordings(event: Loading) -> tuple[str, ...]:
    """The stage in words, from the shortest wording to the whole one.

    `reading: weights`, `reading: weights · compiling kernels, once`, `reading smol: weights · compiling kernels, once`.
    Names of files and models are left out first, and what is done beside comes before them.
    """
    whole, verb = loading_text(event), stage_text(event.stage, "")
    _, named, doing = event.item.partition(": ")
    if event.stage != "read" or not named:
        return verb, whole
    first, *_ = doing.split(" · ")
    return f"{verb}: {first}", f"{verb}: {doing}", whole


def streaming_text(event: Ready) -> str:
    """Which layers stay in memory, what is read each pass, and how large trees may get; empty where all layers stay."""
    nodes, width = event.settings.get("nodes"), event.settings.get("width")
    return f"{event.streaming}; trees have up to {nodes} nodes, width {width}" if event.streaming else ""


def seconds_left(event: Loading) -> float | None:
    """How long it still takes; None where that is not known."""
    if event.unit == "ms":
        return max(0, event.total - event.done) / 1000 if event.total else None
    left = event.total - event.done
    return left / event.rate if event.total and event.rate > 0 and event.unit == "bytes" else None
