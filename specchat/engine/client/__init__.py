"""The client's side of the process boundary: links to an engine, replay, race. Imports no torch."""
