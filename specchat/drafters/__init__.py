"""Drafters guess what the target will say. This table is all that listing them needs."""

from specchat.drafters.options import (
    CascadeOptions,
    DatastoreOptions,
    DraftModelOptions,
    FuseOptions,
    MergeOptions,
    PromptLookupOptions,
    SeveralOptions,
    SuffixOptions,
    TokenRecyclingOptions,
    TrainedNetworkOptions,
)
from specchat.registry import DATASTORE, DRAFT_MODEL, TRAINED_WEIGHTS, Method, Table

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
        "datastore",
        "specchat.drafters.datastore:DatastoreDrafter",
        "continues as the text, or a store of other texts, went on after the same words",
        "SSSD arXiv:2411.05894",
        options=DatastoreOptions,
        requires=(DATASTORE,),
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
    Method(
        "cascade",
        "specchat.drafters.cascade:Cascade",
        "several drafters in order: the first that has something to say about a node is the only one heard",
        "specchat's own, after SuffixDecoding arXiv:2411.04975",
        options=CascadeOptions,
    ),
    Method(
        "several",
        "specchat.drafters.several:Several",
        "several drafters that grow a tree each; one tree holds them all",
        "SpecInfer arXiv:2305.09781",
        options=SeveralOptions,
    ),
    Method(
        "fuse",
        "specchat.drafters.fuse:Fuse",
        "a draft model's tree, with those looked-up guesses grafted on that it finds likely",
        "RASD arXiv:2503.03434",
        options=FuseOptions,
        requires=(DRAFT_MODEL,),
    ),
)

REFERENCE = "reference"
"""The proposer of guesses from a text that the reply is expected to follow (see `reference.py`)."""
