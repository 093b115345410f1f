"""Other engines on the same weights and prompts."""
