"""Tree policies decide which guesses deserve a place. This table is all that listing them needs."""

from specchat.registry import Method, Table
from specchat.trees.options import BestFirstOptions, ExpansionOptions, TemplateOptions

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
    Method(
        "best_first",
        "specchat.trees.best_first:BestFirst",
        "the guesses most likely to be reached and to stand, wherever they are in the tree",
        "DySpec arXiv:2410.11744, SpecExec arXiv:2406.02532",
        options=BestFirstOptions,
    ),
    Method(
        "comb",
        "specchat.trees.comb:Comb",
        "a chain, and beside its nodes the guesses that nearly took their place",
        "SWIFT arXiv:2410.06916",
    ),
    Method(
        "template",
        "specchat.trees.template:Template",
        "a fixed shape: which ranks get children, and which ranks below those",
        "Token Recycling arXiv:2408.08696",
        options=TemplateOptions,
    ),
)
