"""C sources of the package, compiled on the user's machine the first time they are needed."""
