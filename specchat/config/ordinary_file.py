"""Opens files that lie where specchat looks for them: ordinary ones alone."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_ordinary(file: Path) -> BufferedReader:
    """The file, opened to be read. A pipe would keep its reader waiting, and a device has no end.

    Raises:
        OSError: it cannot be opened, or is no ordinary file.
    """
    handle = os.open(file, os.O_RDONLY | _AT_ONCE)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no ordinary file", str(file))
    return os.fdopen(handle, "rb")
