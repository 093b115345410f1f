"""Acceptance rules decide which guesses stand. This table is all that listing them needs."""

from specchat.acceptance.options import (
    FairOptions,
    LenientOptions,
    NestOptions,
    RollbackOptions,
    TransferOptions,
    TypicalOptions,
)
from specchat.registry import Method, Table

ACCEPTANCE_RULES = Table(
    "rule",
    Method(
        "follow",
        "specchat.acceptance.follow:Follow",
        "draw the target's own token at every visited node; walk while it is a child",
        "SpecInfer arXiv:2305.09781, SpecExec arXiv:2406.02532",
        lossless="yes, and the same seed gives the same text as plain decoding; in bfloat16 up to near-ties",
    ),
    Method(
        "multi_step",
        "specchat.acceptance.multi_step:MultiStep",
        "try the draft's independent draws in turn, each against what is left of the target's distribution",
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
    Method(
        "block",
        "specchat.acceptance.block:Block",
        "judge a chain of draws by all of its tokens together, so that likely ones make up for an unlikely one",
        "Block Verification arXiv:2403.10444",
        lossless="yes, in distribution; the seed's text differs from plain decoding's",
    ),
    Method(
        "traversal",
        "specchat.acceptance.traversal:Traversal",
        "the same for every branch of a tree, from its leaves upwards",
        "Traversal Verification arXiv:2505.12398",
        lossless="yes, in distribution; the seed's text differs from plain decoding's",
    ),
    Method(
        "typical",
        "specchat.acceptance.typical:Typical",
        "keep what the target holds likely enough, given how undecided it is; the longest such path",
        "Medusa arXiv:2401.10774",
        lossless="no",
        options=TypicalOptions,
    ),
    Method(
        "lenient",
        "specchat.acceptance.lenient:Lenient",
        "accept draws as if the draft had held them less likely than it did",
        "DistillSpec arXiv:2310.08461, Speculative Decoding arXiv:2211.17192",
        lossless="no",
        options=LenientOptions,
    ),
    Method(
        "rollback",
        "specchat.acceptance.rollback:Rollback",
        "keep guesses until the target finds one too unlikely",
        "BiLD arXiv:2302.07863",
        lossless="no",
        options=RollbackOptions,
    ),
    Method(
        "transfer",
        "specchat.acceptance.transfer:Transfer",
        "move the target's distribution towards the draft's before draws are tested",
        "RAPID arXiv:2502.20330",
        lossless="no",
        options=TransferOptions,
    ),
    Method(
        "nest",
        "specchat.acceptance.nest:Nest",
        "mix the target's distribution with copies from the text, and copy whole spans where those are trusted",
        "NEST arXiv:2405.19325",
        lossless="no",
        options=NestOptions,
    ),
    Method(
        "fair",
        "specchat.acceptance.fair:Fair",
        "of the likely guesses take the one that depends least on who the prompt is about",
        "AMBEDKAR arXiv:2509.02133",
        lossless="no",
        options=FairOptions,
    ),
)
