"""The server's side of the process boundary: runs the models, with torch."""
