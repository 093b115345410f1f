"""Opening the app: on an engine, or on a recording."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from specchat.cli.engines import engine_log, start_engine
from specchat.config import load_catalog, shipped_file, user_settings
from specchat.engine.client import Link
from specchat.engine.replay import Recording
from specchat.errors import SpecchatError
from specchat.models import weights
from specchat.settings import Settings
from specchat.tui.app import run_app
from specchat.tui.pairs import PairInfo


def open_chat(settings: dict[str, Any], engine: str) -> None:
    """The app on an engine: a child process here, or wherever `engine` starts one."""
    wanted = {**user_settings(), **settings}
    load_catalog().pair(wanted.get("pair", Settings().pair))  # a wrong name is told before the screen is taken

    def connect(wake: Callable[[], None]) -> Link:
        return start_engine(engine, wanted, wake)

    try:
        run_app(connect, settings=settings, pairs=known_pairs, demo=_demo())
    finally:
        with suppress(OSError):
            engine_log().unlink()


def open_replay(file: Path) -> None:
    """The app on a recording; no model, no engine."""
    recording = Recording.read(file)
    run_app(None, settings={}, pairs=(), replay=recording)


def known_pairs() -> list[PairInfo]:
    """Every pair of the catalog with the state of its weights on this machine."""
    catalog = load_catalog()
    found = []
    for pair in catalog.pairs.values():
        states = [weights.state(model) for model in catalog.models_of(pair)]
        kinds = {state.kind for state in states}
        missing = [state for state in states if state.kind != "ready"]
        found.append(
            PairInfo(
                name=pair.name,
                target=pair.target,
                draft=pair.draft,
                state="ready" if kinds == {"ready"} else "missing" if kinds == {"missing"} else "partial",
                download_bytes=sum((state.total_bytes or 0) - state.disk_bytes for state in missing),
                summary=pair.summary,
                notes=pair.notes,
            )
        )
    return found


def _demo() -> Path | None:
    """The recording that comes with specchat, offered where weights cannot be had."""
    try:
        return shipped_file("assets/demo.jsonl")
    except SpecchatError:
        return None
