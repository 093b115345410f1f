"""Our own decoder for Llama-like models, computed by torch."""
