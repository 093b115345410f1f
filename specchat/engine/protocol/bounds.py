"""Bounds of the values in messages: types that the decoder enforces, field by field."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

LONGEST_LINE_BYTES = 16 * 2**20
"""One message, at most. The longest real ones carry a whole chat: 131,072 tokens take about a megabyte."""

MOST_NODES = 4096
"""Nodes of one tree, at most; the settings allow 512."""

MOST_REDONE = 4096
"""Tokens of a reply that is done once more under other settings, at most; the app asks for fewer."""

MOST_FORBIDDEN = 256
"""Forbidden guesses of one round that are told, at most; the engine tells a quarter of them."""

_WHOLE = 2**53  # what every JSON reader keeps exactly

Whole = Annotated[int, Meta(ge=0, le=_WHOLE)]
Count = Annotated[int, Meta(ge=1, le=_WHOLE)]
Id = Annotated[int, Meta(ge=0, le=_WHOLE)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Token = Annotated[int, Meta(ge=0, le=2**24 - 1)]
Parent = Annotated[int, Meta(ge=-1, le=MOST_NODES)]
Node = Annotated[int, Meta(ge=0, le=MOST_NODES)]
ExitCode = Annotated[int, Meta(ge=0, le=255)]

Seconds = Annotated[float, Meta(ge=-1e-6, le=1e9)]  # a difference of two times may round to a little below 0
Rate = Annotated[float, Meta(ge=0, le=1e18)]
Share = Annotated[float, Meta(ge=0, le=1)]
LogProbability = Annotated[float, Meta(le=1.0)]  # rounding may put a certain token a little above 0
Bias = Annotated[float, Meta(ge=-100, le=100)]
TopCount = Annotated[int, Meta(ge=0, le=20)]
Margin = Annotated[float, Meta(ge=-1e12, le=1e12)]

ConstraintKind = Literal["json_schema", "json_object", "regex", "grammar", "calls"]
Role = Annotated[str, Meta(pattern="^(system|user|assistant)$")]
KeptName = Annotated[str, Meta(pattern="^([A-Za-z0-9][A-Za-z0-9_-]{0,63})?$")]
Kind = Annotated[str, Meta(pattern="^(int|float|str|bool)$")]
Name = Annotated[str, Meta(max_length=4096)]
Words = Annotated[str, Meta(max_length=65536)]
LONGEST_FEW_WORDS = 64
FewWords = Annotated[str, Meta(max_length=LONGEST_FEW_WORDS)]
