"""Training a drafter for a target: texts of its own, its states on them, a small network that learns from both."""
