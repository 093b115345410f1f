"""Drafters guess what the target will say. This table is all that listing them needs."""

from specchat.drafters.options import (
    DraftModelOptions,
    JacobiOptions,
    LookaheadOptions,
    MergeOptions,
    PromptLookupOptions,
    SuffixOptions,
    TokenRecyclingOptions,
    TrainedNetworkOptions,
)
from specchat.registry import ANY_DRAFT_MODEL, DRAFT_MODEL, TRAINED_WEIGHTS, Method, Table

DRAFTERS = Table(
    "drafter",
    Method(
        "none",
        "specchat.drafters.nothing:Nothing",
        "proposes nothing: plain decoding",
        "baseline",
    ),
    Method(
        "prompt_lookup",
        "specchat.drafters.prompt_lookup:PromptLookup",
        "continues the last words as they went on earlier in prompt and reply",
        "Prompt Lookup Decoding (Saxena, 2023), LLMA arXiv:2304.04487",
        options=PromptLookupOptions,
    ),
    Method(
        "draft_model",
        "specchat.drafters.draft_model:DraftModel",
        "a smaller model with the same tokens guesses level by level",
        "Speculative Decoding arXiv:2211.17192; coupled draws after arXiv:2408.07978",
        options=DraftModelOptions,
        requires=(DRAFT_MODEL,),
    ),
    Method(
        "cross_vocabulary",
        "specchat.drafters.cross_vocabulary:CrossVocabulary",
        "a draft model with other tokens guesses level by level, and its guesses are translated",
        "OmniDraft arXiv:2507.02659",
        requires=(ANY_DRAFT_MODEL,),
    ),
    Method(
        "token_recycling",
        "specchat.drafters.token_recycling:TokenRecycling",
        "for every token, the successors the target last thought likely, rejected guesses included",
        "Token Recycling arXiv:2408.08696",
        options=TokenRecyclingOptions,
    ),
    Method(
        "suffix",
        "specchat.drafters.suffix:Suffix",
        "continues as the text, or an earlier reply, went on after the same words, by counting",
        "SuffixDecoding arXiv:2411.04975",
        options=SuffixOptions,
    ),
    Method(
        "lookahead",
        "specchat.drafters.lookahead:Lookahead",
        "n-grams that the target computes in parallel some places ahead, in extra rows of its own passes",
        "Lookahead Decoding arXiv:2402.02057",
        options=LookaheadOptions,
    ),
    Method(
        "jacobi",
        "specchat.drafters.jacobi:Jacobi",
        "what the target said after its own last guesses, iterated towards a fixed point",
        "Jacobi decoding arXiv:2305.10427",
        options=JacobiOptions,
    ),
    Method(
        "hydra",
        "specchat.drafters.trained_network:TrainedNetworkDrafter",
        "a small trained network guesses token after token from the target's last state",
        "Hydra arXiv:2402.05109",
        options=TrainedNetworkOptions,
        requires=(TRAINED_WEIGHTS,),
    ),
    Method(
        "medusa",
        "specchat.drafters.trained_network:TrainedNetworkDrafter",
        "small trained heads guess all depths at once from the target's last state",
        "Medusa arXiv:2401.10774",
        options=TrainedNetworkOptions,
        requires=(TRAINED_WEIGHTS,),
    ),
    Method(
        "eagle",
        "specchat.drafters.trained_network:TrainedNetworkDrafter",
        "a trained decoder layer guesses from the target's states of the whole text",
        "EAGLE-3 arXiv:2503.01840",
        options=TrainedNetworkOptions,
        requires=(TRAINED_WEIGHTS,),
    ),
    Method(
        "merge",
        "specchat.drafters.merge:Merge",
        "several drafters in one tree, each guess weighted by how often its like was right",
        "SpecInfer arXiv:2305.09781",
        options=MergeOptions,
    ),
)

REFERENCE = "reference"
"""The proposer of guesses from a text that the reply is expected to follow (see `reference.py`)."""
