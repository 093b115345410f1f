"""What msgspec raises where it is given bytes that it cannot read: not only errors of its own."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""No JSON, or not of the expected type; text that is not UTF-8; brackets without end."""
