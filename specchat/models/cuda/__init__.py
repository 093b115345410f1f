"""Recorded passes on a CUDA device."""
