"""All tables of methods side by side; reading this imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.controllers import CONTROLLERS
from specchat.drafters import DRAFTERS
from specchat.registry import Method, Table
from specchat.trees import TREE_POLICIES

FAMILIES: tuple[Table, ...] = (DRAFTERS, TREE_POLICIES, ACCEPTANCE_RULES, CONTROLLERS)
"""Every table of methods, in the order they are shown."""


def methods_with_weights() -> tuple[str, ...]:
    """Names of the methods for which something is trained."""
    return tuple(method.name for _, method in methods() if method.weights_option)


def methods() -> Iterator[tuple[str, Method]]:
    """Every method with its family's name."""
    for table in FAMILIES:
        for method in table.values():
            yield table.family, method
