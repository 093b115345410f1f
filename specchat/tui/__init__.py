"""The terminal app: the only part that draws. It shows what the engine's events say."""
