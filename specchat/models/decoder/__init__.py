"""Our own decoder for Llama-like models: shape, cache, layers in torch, eager and recorded passes."""
