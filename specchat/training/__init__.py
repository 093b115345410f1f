"""Training a drafter for a target: texts of its own, its states on them, a small network that learns from both."""

from typing import Literal

StageName = Literal["loading", "replies", "states", "learning", "measuring"]
"""A stage of a training; `loading` and `measuring` are before and after it."""
