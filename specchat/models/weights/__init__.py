"""Find, fetch and verify weights: torch-free, resumable, and only formats that cannot carry code."""

from specchat.models.weights.fetching import check, fetch, remove
from specchat.models.weights.progress import Cancelled, Progress
from specchat.models.weights.state import State, locate, state

__all__ = ["Cancelled", "Progress", "State", "check", "fetch", "locate", "remove", "state"]
