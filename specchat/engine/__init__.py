"""The process boundary: the protocol, the far side that runs the models, and the near side that needs no torch."""
