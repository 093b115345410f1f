"""Amounts of memory as users write them: `2GB`, `1.5 GiB`, `800MB`."""

from __future__ import annotations

import re

from specchat.errors import UsageError, short

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_amount_or_off(text: str) -> int:
    """Bytes of an amount that is not about memory; 0 for `off`. UsageError for what is neither."""
    said = text.strip() or "0"
    return 0 if said.lower() == "off" else parse_memory(said, "prompt_cache", "2GB, 800MB or off")


def parse_memory(text: str, name: str = "memory", like: str = "2GB or 800MB") -> int:
    """Bytes of an amount; 0 for an empty text. UsageError, naming the setting, if it is not an amount of memory."""
    if not text.strip():
        return 0
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([KMG]I?|)B?\s*", text, re.IGNORECASE)
    amount = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if amount < 1:
        raise UsageError(f"{name} = {short(text)} is not an amount of memory; write it like {like}")
    return amount


def memory_text(amount: int) -> str:
    """An amount as `parse_memory` reads it, rounded up."""
    unit, name = (10**9, "GB") if amount >= 10**10 else (10**6, "MB")
    return f"{-(-amount // unit)}{name}"
