"""Numbers of bytes, as commands print them."""

from __future__ import annotations


def sized(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
