"""What is on this machine already: models of other programs, read where they lie, and the pairs they make."""
