"""Numbers of bytes, as commands print them."""

from __future__ import annotations


def sized(count: float) -> str:
    """Bytes in the unit that fits: `512 B`, `8.1 kB`, `98.4 MB`, `1.12 GB`."""
    if count < 1000:
        return f"{count:.0f} B"
    if count < 999_950:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
