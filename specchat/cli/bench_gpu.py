"""`specchat bench gpu`: what this machine's GPU gives: `python -m tools.gpu`, with pairs by name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import specchat
from specchat.errors import UsageError

_RESULT = Path("gpu-check/result.json")


def bench_gpu(settings: dict[str, Any], save: Path | None) -> int:
    """Measure, print Markdown, and say how it ended.

    A pair with a draft model is measured against transformers' assisted generation; the target of one without is
    widened.

    Raises:
        UsageError: the repository's tools are not here.
    """
    from specchat.config import load_catalog
    from specchat.models import fetch

    repository = Path(specchat.__file__).parents[1]
    if not (repository / "tools" / "gpu").is_dir():
        raise UsageError("bench 'gpu' is one of the tools in specchat's repository, which is not here")
    sys.path.insert(0, str(repository))
    check = importlib.import_module("tools.gpu.run_parts").check
    setup_on = importlib.import_module("tools.gpu.setup").Setup.on

    device = settings.get("device", "auto")
    setup = setup_on(device, tiny=False)
    if "pair" in settings:
        catalog = load_catalog()
        models = catalog.models_of(catalog.pair(settings["pair"]))
        roles = ("target", "draft") if len(models) == 2 else ("weights",)
        setup = setup_on(device, False, **{role: fetch.fetch(model) for role, model in zip(roles, models, strict=True)})
    return int(check(setup, save or _RESULT, show=_show_on_stdout, say=_say_on_stderr).code)


def _show_on_stdout(text: str) -> None:
    print(text + "\n", flush=True)


def _say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
