"""Networks that compute logits for every node of a token tree, and the weights they are made of."""
