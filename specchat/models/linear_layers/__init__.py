"""Linear layers per precision, for processors and for CUDA."""
