"""Acceptance rules decide which guesses stand. This table is all that listing them needs."""

from specchat.registry import Method, Table

ACCEPTANCE_RULES = Table(
    "rule",
    Method(
        "follow",
        "specchat.acceptance.follow:Follow",
        "draw the target's own token at every visited node; walk while it is a child",
        "SpecInfer arXiv:2305.09781, SpecExec arXiv:2406.02532",
        lossless="yes, and the same seed gives the same text as plain decoding",
    ),
)
