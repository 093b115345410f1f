"""What a command prints to a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys


def printed(*words: str) -> str:
    """All that a command prints to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "specchat", *words], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        said += data
    process.wait(60)
    os.close(ours)
    return said.decode()
