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
    Method(
        "multi_step",
        "specchat.acceptance.multi_step:MultiStep",
        "try the draft's independent draws in turn, each against what is left of the target's law",
        "SpecInfer arXiv:2305.09781",
        lossless="yes, in distribution; the seed's text differs from plain decoding's",
    ),
    Method(
        "recursive",
        "specchat.acceptance.recursive:Recursive",
        "the same with draws without replacement: no two children are wasted on one token",
        "RSD arXiv:2402.14160",
        lossless="yes, in distribution; the seed's text differs from plain decoding's",
    ),
)
