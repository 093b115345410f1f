"""Counting work without a clock: lines of Python that a call runs inside specchat."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import specchat

_PACKAGE = str(Path(specchat.__file__).parent)


def operations(call: Callable[..., Any], *arguments: Any) -> int:
    """How many lines of specchat's own code a call runs."""
    count = 0

    def traced(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        call(*arguments)
    finally:
        sys.settrace(before)
    return count
