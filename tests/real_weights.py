"""Real weights for tests: from the user's own cache where SPECCHAT_HOME names one, else from one kept for tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specchat.config import load_catalog
from specchat.errors import WeightsError
from specchat.models.hub import fetching

HOME = Path(os.environ.get("SPECCHAT_HOME") or "~/.cache/specchat-tests").expanduser()
"""Read when tests are collected, before any of them gets a home of its own."""


def fetched(model: str) -> Path:
    """The model's file, fetched once; skips the test where it cannot be had."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(HOME))
        try:
            return fetching.fetch(load_catalog().model(model))
        except WeightsError as error:
            pytest.skip(f"the weights cannot be fetched: {error}")
