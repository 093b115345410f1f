"""A lower priority for work that no reply waits for, on systems where a thread can raise its priority again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CAN_GO_BACK = sys.platform == "linux"
"""A thread that raised its niceness cannot lower it again. Linux's batch policy can be left, and takes turns later."""


@contextmanager
def background_priority() -> Iterator[None]:
    """Run the block at a lower priority: this thread gets the processor after those of other programs."""
    if not _CAN_GO_BACK or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    parameters = os.sched_param(0)
    os.sched_setscheduler(0, os.SCHED_BATCH, parameters)
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, parameters)
