"""What is said of an error that ended the app: one line, and the traceback in a file."""

from __future__ import annotations

import traceback
from datetime import datetime
from pathlib import Path

from specchat.config import private_dir, state_dir
from specchat.engine.protocol.text import one_line
from specchat.errors import cut

MOST_LOGS = 10
"""So many files are kept, the newest ones."""


def crash_line(error: Exception) -> str:
    """Write the traceback to a file; returns the line that names the error and the file."""
    said = one_line(f"specchat: internal error: {type(error).__name__}: {cut(str(error))}")
    written = "".join(traceback.format_exception(error))
    try:
        return f"{said}; what it was doing is in {_keep(written)}"
    except OSError as problem:
        return f"{written}\n{said}; its log could not be written: {problem.filename}: {problem.strerror}"


def _keep(text: str) -> Path:
    """Write a log, readable by the user alone; the oldest ones make room for it."""
    folder = private_dir(state_dir() / "logs")
    file = folder / f"crash-{datetime.now():%Y%m%d-%H%M%S-%f}.log"
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8", errors="backslashreplace")
    for old in sorted(folder.glob("crash-*.log"))[:-MOST_LOGS]:
        old.unlink(missing_ok=True)
    return file
