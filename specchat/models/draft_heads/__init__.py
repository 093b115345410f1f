"""Small trained networks that read the target's states and guess the next tokens."""
