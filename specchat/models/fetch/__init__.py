"""Find, fetch and verify weights: torch-free, resumable, and only formats that cannot carry code."""

from specchat.models.fetch.fetching import check, fetch, remove
from specchat.models.fetch.progress import Cancelled, Progress
from specchat.models.fetch.state import State, locate, state

__all__ = ["Cancelled", "Progress", "State", "check", "fetch", "locate", "remove", "state"]
