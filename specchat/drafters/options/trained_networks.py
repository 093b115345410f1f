"""Options of the drafters that are networks trained for one target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specchat.registry import option


def trained_weights() -> Any:
    """The option `weights`, which every method that needs weights has."""
    return option("", "which trained drafter to use, by name; if empty, the newest for the target")


@dataclass(frozen=True)
class MaskRowsOptions:
    """Options of the drafters that are trained masks: `prompt_tokens` and `mtp`."""

    weights: str = trained_weights()
    rows: int = option(6, "the most rows of masks in a pass", unit="rows", minimum=1, maximum=256)
    behind: str = option(
        "likeliest",
        "where masks stand: behind all nodes, those first that are the likeliest to end what is accepted, or behind "
        "the last node of the likeliest path alone",
        choices=("likeliest", "last"),
    )


@dataclass(frozen=True)
class TrainedNetworkOptions:
    """Options of the drafters that are trained networks, such as `hydra`."""

    weights: str = trained_weights()
    tokens: int = option(
        2048,
        "how many of the most used tokens it can guess, besides those of the text",
        unit="tokens",
        minimum=1,
    )
