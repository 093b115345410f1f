"""What model files say before they are loaded, and whether this machine can run them."""
