"""Tree policies decide which guesses deserve a place. This table is all that listing them needs."""

from specchat.registry import Method, Table
from specchat.trees.options import ExpansionOptions

TREE_POLICIES = Table(
    "policy",
    Method(
        "chain",
        "specchat.trees.chain:Chain",
        "the best guess after each guess: one branch",
        "Speculative Sampling arXiv:2302.01318",
    ),
    Method(
        "expansion",
        "specchat.trees.expansion:Expansion",
        "a set number of children at each depth",
        "SpecInfer arXiv:2305.09781",
        options=ExpansionOptions,
    ),
)
