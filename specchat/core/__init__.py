"""Data types and arithmetic of speculative decoding: trees, verdicts, rounds. Imports torch, and what compiles C."""
