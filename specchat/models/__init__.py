"""Networks that answer for a token tree, and the weights they are made of."""
