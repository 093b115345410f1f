"""The near side of the process boundary: client, replay, race. Owns nothing heavy."""
