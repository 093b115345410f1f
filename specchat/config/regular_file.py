"""Opens files that lie where specchat looks for them: regular files alone, no pipes and no devices."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(file: Path) -> BufferedReader:
    """The file, opened to be read. A pipe would keep its reader waiting, and a device has no end.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    handle = os.open(file, os.O_RDONLY | _WITHOUT_WAITING)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    return os.fdopen(handle, "rb")
