"""Tree policies decide which guesses deserve a place. This table is all that listing them needs."""

import specchat.trees.options as options
from specchat.registry import Method, Table

TREE_POLICIES = Table(
    "policy",
    Method(
        "chain",
        "specchat.trees.given_shapes:Chain",
        "the best guess after each guess: one branch",
        "Speculative Sampling arXiv:2302.01318",
    ),
    Method(
        "expansion",
        "specchat.trees.given_shapes:Expansion",
        "a set number of children at each depth",
        "SpecInfer arXiv:2305.09781",
        options=options.ExpansionOptions,
    ),
    Method(
        "best_first",
        "specchat.trees.best_first:BestFirst",
        "the guesses most likely to be reached and accepted, wherever they are in the tree",
        "DySpec arXiv:2410.11744, SpecExec arXiv:2406.02532",
        options=options.BestFirstOptions,
    ),
    Method(
        "comb",
        "specchat.trees.given_shapes:Comb",
        "a chain, and beside its nodes the guesses that nearly took their place",
        "SWIFT arXiv:2410.06916",
    ),
    Method(
        "template",
        "specchat.trees.template:Template",
        "a fixed shape: which ranks get children, and which ranks below those",
        "Token Recycling arXiv:2408.08696",
        options=options.TemplateOptions,
    ),
    Method(
        "sequoia",
        "specchat.trees.sequoia:Sequoia",
        "the optimal static tree, from how often guesses of each rank are accepted and what rows and levels cost",
        "Sequoia arXiv:2402.12374",
        options=options.SequoiaOptions,
    ),
    Method(
        "specexec",
        "specchat.trees.best_first:SpecExec",
        "the likeliest prefixes, found by a search with a wide beam: for trees of hundreds of nodes",
        "SpecExec arXiv:2406.02532",
        options=options.SpecExecOptions,
    ),
    Method(
        "eagle2",
        "specchat.trees.eagle2:Eagle2",
        "expands the surest guesses of every level, then keeps the surest of all",
        "EAGLE-2 arXiv:2406.16858",
        options=options.Eagle2Options,
    ),
    Method(
        "rsd_c",
        "specchat.trees.given_shapes:RsdC",
        "a set number of children for every node, drawn without replacement",
        "RSD arXiv:2402.14160",
        options=options.RsdCOptions,
    ),
    Method(
        "rsd_s",
        "specchat.trees.rsd_s:RsdS",
        "stochastic beam search: whole continuations drawn without replacement",
        "RSD arXiv:2402.14160, Stochastic Beams arXiv:1903.06059",
        options=options.RsdSOptions,
    ),
    Method(
        "confidence",
        "specchat.trees.confidence:Confidence",
        "stops where the draft is unsure; how sure it must be follows what was accepted",
        "BiLD arXiv:2302.07863, LLMCad arXiv:2309.04255",
        options=options.ConfidenceOptions,
    ),
    Method(
        "graph",
        "specchat.trees.graph:Graph",
        "paths that end in the same tokens share what is guessed after them: drafted once, unfolded for verifying",
        "Graph-Structured Speculative Decoding arXiv:2407.16207",
        options=options.GraphOptions,
    ),
)
