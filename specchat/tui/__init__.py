"""The terminal app: the only part that draws, and it only listens."""
