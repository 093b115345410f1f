"""Data types and arithmetic of speculative decoding: trees, verdicts, rounds, noise. Imports torch, and what compiles C."""
