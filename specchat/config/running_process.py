"""Whether a process is running, by its number."""

from __future__ import annotations

import os


def is_running(process: int) -> bool:
    """Whether a process of this number is running, whoever's it is. Where asking would end it, it counts as running."""
    if os.name == "nt":  # there, to signal a process is to end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's process
        return True
    return True
