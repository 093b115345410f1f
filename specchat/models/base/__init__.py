"""What all models share: the shape, the cache and its rows, layer hooks, what the head returns."""
