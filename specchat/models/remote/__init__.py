"""A target in a process on another machine: drafter and tree are here, weights and cache are there."""

from __future__ import annotations

from abc import ABC, abstractmethod


class TargetElsewhere(ABC):
    """A model on another machine, which judges trees there. Apart from what speaks with it, which needs msgspec."""

    at: str

    @abstractmethod
    def weights_sha256(self) -> str:
        """The checksum of the weights there."""

    @abstractmethod
    def close(self) -> None:
        """End the process there; a text would start it anew."""
