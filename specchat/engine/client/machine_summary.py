"""This machine in a few words."""

from __future__ import annotations

import os
import platform


def machine() -> str:
    """`Linux x86_64, 2 cores`."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
