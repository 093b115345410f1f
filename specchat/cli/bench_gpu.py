"""`specchat bench gpu`: what this machine's GPU gives: `python -m specchat.bench.gpu`, with pairs by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_RESULT = Path("gpu-check/result.json")


def bench_gpu(settings: dict[str, Any], save: Path | None) -> int:
    """Measure, print Markdown, and say how it ended.

    A pair with a draft model is measured against transformers' assisted generation; the target of one without is
    widened.
    """
    from specchat.bench.gpu.run_parts import check
    from specchat.bench.gpu.setup import Setup
    from specchat.config import load_catalog
    from specchat.models.hub import fetching

    device = settings.get("device", "auto")
    setup = Setup.on(device, tiny=False)
    if "pair" in settings:
        catalog = load_catalog()
        models = catalog.models_of(catalog.pair(settings["pair"]))
        roles = ("target", "draft") if len(models) == 2 else ("weights",)
        setup = Setup.on(
            device, False, **{role: fetching.fetch(model) for role, model in zip(roles, models, strict=True)}
        )
    return check(setup, save or _RESULT, show=_show, say=_say).code


def _show(text: str) -> None:
    print(text + "\n", flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
