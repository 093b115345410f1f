"""Edits that break the layers in C."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

AGREEMENT = "tests/models/test_native_agreement.py"

EDITS = (
    Mutation(
        "layers in C",
        "adds up more weights of keys than 32 bits hold",
        "models/cpu_kernels/attention.h",
        "enum { SUMMED = 512 };",
        "enum { SUMMED = 8192 };",
        (AGREEMENT, "-k", "weigh_alike"),
    ),
)
