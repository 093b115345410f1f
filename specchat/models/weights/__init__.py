"""Reading weight files: GGUF, safetensors, tokenizers."""
