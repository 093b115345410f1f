"""specchat: a terminal chat on a speculative engine, where you watch the speculation happen."""

__version__ = "0.1.0"
