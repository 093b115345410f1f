"""The near side of the process boundary: client, replay, race. Imports no torch."""
