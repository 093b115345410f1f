"""Narrower networks made of a target's weights: which heads and channels matter, and a network without the others."""
