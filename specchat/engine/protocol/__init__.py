"""The messages that cross the process boundary."""
