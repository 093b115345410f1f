"""The process boundary: the protocol, the server that runs the models, and the client, which needs no torch."""
