"""Pure functions from state to lines of text."""
