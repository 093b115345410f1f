"""Find, fetch and verify weights: torch-free, resumable, and only formats that cannot carry code."""

from specchat.models.fetch.checksum import known_sha256, weights_sha256
from specchat.models.fetch.fetching import check, fetch, remove
from specchat.models.fetch.model_state import State, locate, state
from specchat.models.fetch.progress import Cancelled, Progress

__all__ = [
    "Cancelled",
    "Progress",
    "State",
    "check",
    "fetch",
    "known_sha256",
    "locate",
    "remove",
    "state",
    "weights_sha256",
]
