"""Puts the parts together: the round, what fits with what, a reply from prompt to stop."""
