"""Every use of Textual's private parts, and which versions it is tested with."""

from __future__ import annotations

import logging
from functools import cache

import textual

TESTED = ("8.2.",)
"""Prefixes of tested versions. With others the fixes are off or use public functions, which is slower but works."""


@cache
def tested() -> bool:
    """Whether private attributes may be used; where not, the log says so once."""
    known = textual.__version__.startswith(TESTED)
    if not known:
        wanted = ", ".join(f"{version}*" for version in TESTED)
        remark = "Textual %s is not one of the tested versions (%s): drawing and pasting may be slower"
        logging.getLogger(__name__).warning(remark, textual.__version__, wanted)
    return known
