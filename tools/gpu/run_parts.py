"""Runs the parts one after another, keeps what each found, and says which there are."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import shlex
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specchat.bench.circumstances import circumstances
from specchat.errors import SpecchatError, UsageError, nearest
from tools.gpu.results import Outcome, Results, heading, section
from tools.gpu.setup import Setup

PARTS = {
    "bandwidth": "how fast the device's memory is",
    "products": "weights in a GGUF file's own bits times rows, against that",
    "decode": "plain decoding of an 8B shape against the bandwidth",
    "tree": "what a pass costs by its rows",
    "gaps": "how long the device waits for the host",
    "text": "real text at a large model's cost",
    "pair": "a true pair against transformers' assisted generation",
}
"""Part → what it measures; its module has the same name."""


@dataclass(frozen=True)
class Verdict:
    """How a run ended.

    Args:
        wrong: parts in which a text was not the target's, or a product was wrong.
        broken: parts that could not be measured to their end.
    """

    wrong: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """0: all parts were measured, whatever the figures; 1: a text or a product was wrong; 2: a part broke."""
        return 1 if self.wrong else 2 if self.broken else 0


def check(
    setup: Setup,
    file: Path,
    wanted: Sequence[str] = (),
    again: bool = False,
    show: Callable[[str], None] = lambda text: None,
    say: Callable[[str], None] = lambda text: None,
    command: Sequence[str] = (),
) -> Verdict:
    """Measure the parts asked for, all that can be measured by default; what `file` holds already is kept.

    Args:
        file: JSON, written after every part.
        again: measure also what was measured before.
        show: hears the results, as Markdown.
        say: hears what is being done.

    Raises:
        UsageError: a part that does not exist, or that needs weights that are not named.
    """
    chosen = _chosen(setup, wanted, say)
    about = dataclasses.asdict(circumstances())
    about |= {"command": shlex.join(command) or about["command"], "driver": _driver(setup.device)}
    results = Results(file, setup.describe(), about)
    results.load()
    show(heading(about, results.setup))
    broken = [name for name in chosen if not _part(name, setup, results, again, show, say)]
    wrong = [name for name in chosen if name in results.parts and results.parts[name].outcome.wrong]
    return Verdict(tuple(wrong), tuple(broken))


def _part(
    name: str, setup: Setup, results: Results, again: bool, show: Callable[[str], None], say: Callable[[str], None]
) -> bool:
    """Measure one part unless it was, and show it; whether there is something to show."""
    if again or name not in results.parts:
        say(f"{name}: {PARTS[name]}")
        began = time.perf_counter()
        try:
            module = importlib.import_module(f"tools.gpu.{name}")
            gc.freeze()  # what was imported is searched for garbage no more, which took 0.2 s each time
            outcome: Outcome = module.measure(setup, results)
        except Exception as error:  # the other parts are worth having: time on a borrowed machine is short
            detail = str(error) if isinstance(error, SpecchatError) else traceback.format_exc()
            say(f"{name} failed after {time.perf_counter() - began:.0f} s: {detail}")
            show(f"**{name}**: failed: {type(error).__name__}")
            return False
        finally:
            _let_go(setup.device)
        results.add(name, outcome, time.perf_counter() - began)
    show(section(name, PARTS[name], results.parts[name]))
    return True


def _chosen(setup: Setup, wanted: Sequence[str], say: Callable[[str], None]) -> list[str]:
    for name in wanted:
        if name not in PARTS:
            raise UsageError(f"{name!r} is not a part of this check{nearest(name, PARTS)}")
        if (missing := _missing(setup, name)) is not None:
            raise UsageError(f"{name} needs {missing}")
    if wanted:
        return list(dict.fromkeys(wanted))
    for name in PARTS:
        if (missing := _missing(setup, name)) is not None:
            say(f"{name} is left out: it needs {missing}")
    return [name for name in PARTS if _missing(setup, name) is None]


def _missing(setup: Setup, name: str) -> str | None:
    if name == "text" and setup.weights is None:
        return "--weights: a small model of the Llama shape, a GGUF file or a folder"
    if name == "pair" and (setup.target is None or setup.draft is None):
        return "--target and --draft: two models with the same tokens"
    return None


def _let_go(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _driver(device: torch.device) -> Any:
    """The driver's version, as far as the system tells."""
    if device.type != "cuda":
        return None
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            asked, capture_output=True, encoding="utf-8", errors="replace", timeout=20, check=True
        ).stdout.split("\n")[0]
    return None
