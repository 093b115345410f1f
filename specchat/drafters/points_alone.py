"""The declaration that most drafters share: what they propose was not drawn from a law."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from specchat.core.tree import DrawKind


def points_alone(options: Any, members: Sequence[Collection[DrawKind]]) -> frozenset[DrawKind]:
    """A drafter's `draw_kinds` where all its guesses are points."""
    return frozenset({DrawKind.POINT})
