"""Drafters guess what the target will say. This table is all that listing them needs."""

import specchat.drafters.options as options
from specchat.registry import ANY_DRAFT_MODEL, DATASTORE, DRAFT_MODEL, SHIPPED_HEAD, TRAINED_WEIGHTS, Method, Table


def _network(name: str, summary: str, source: str) -> Method:
    """A network of `models/draft_heads`; the drafter is the same for all."""
    where = "specchat.drafters.trained_network:TrainedNetworkDrafter"
    return Method(name, where, summary, source, options=options.TrainedNetworkOptions, requires=(TRAINED_WEIGHTS,))


def _masks(name: str, summary: str, source: str, given: type) -> Method:
    where = "specchat.drafters.mask_rows:MaskRowsDrafter"
    return Method(name, where, summary, source, options=given, requires=(TRAINED_WEIGHTS,), in_target_pass=True)


DRAFTERS = Table(
    "drafter",
    Method("none", "specchat.drafters.nothing:Nothing", "proposes nothing: plain decoding", "baseline"),
    Method(
        "prompt_lookup",
        "specchat.drafters.prompt_lookup:PromptLookup",
        "guesses what followed the last words earlier in prompt and reply",
        "Prompt Lookup Decoding (Saxena, 2023), LLMA arXiv:2304.04487",
        options=options.PromptLookupOptions,
    ),
    Method(
        "draft_model",
        "specchat.drafters.draft_model:DraftModel",
        "a smaller model with the same tokens guesses level by level",
        "Speculative Decoding arXiv:2211.17192; coupled draws after arXiv:2408.07978",
        options=options.DraftModelOptions,
        requires=(DRAFT_MODEL,),
        trainable=True,
        drafts_ahead=True,
    ),
    Method(
        "cross_vocabulary",
        "specchat.drafters.cross_vocabulary:CrossVocabulary",
        "a draft model with other tokens guesses level by level, and its guesses are translated",
        "OmniDraft arXiv:2507.02659",
        options=options.CrossVocabularyOptions,
        requires=(ANY_DRAFT_MODEL,),
        drafts_ahead=True,
    ),
    Method(
        "token_recycling",
        "specchat.drafters.token_recycling:TokenRecycling",
        "for every token, the successors the target last thought likely, rejected guesses included",
        "Token Recycling arXiv:2408.08696",
        options=options.TokenRecyclingOptions,
    ),
    Method(
        "suffix",
        "specchat.drafters.suffix:Suffix",
        "guesses what followed the same words in the text or an earlier reply, by counting",
        "SuffixDecoding arXiv:2411.04975",
        options=options.SuffixOptions,
    ),
    Method(
        "datastore",
        "specchat.drafters.datastore:DatastoreDrafter",
        "guesses what followed the same words in the text or a store of other texts",
        "SSSD arXiv:2411.05894",
        options=options.DatastoreOptions,
        requires=(DATASTORE,),
    ),
    Method(
        "lookahead",
        "specchat.drafters.lookahead:Lookahead",
        "n-grams that the target computes in parallel some places ahead, in extra rows of its own passes",
        "Lookahead Decoding arXiv:2402.02057",
        options=options.LookaheadOptions,
    ),
    Method(
        "jacobi",
        "specchat.drafters.jacobi:Jacobi",
        "what the target said after its own last guesses, iterated towards a fixed point",
        "Jacobi decoding arXiv:2305.10427",
        options=options.JacobiOptions,
    ),
    _network(
        "hydra",
        "a small trained network guesses token after token from the target's last state",
        "Hydra arXiv:2402.05109",
    ),
    _network(
        "medusa",
        "small trained heads guess all depths at once from the target's last state",
        "Medusa arXiv:2401.10774",
    ),
    _network(
        "selector",
        "small trained heads guess all depths at once, and scores of pairs of tokens say which guesses go together",
        "after DFlash 2's selector (llama.cpp #27342, 2026)",
    ),
    _network(
        "amphista",
        "trained heads that attend to each other guess all depths at once from the target's states of the whole text",
        "after Amphista arXiv:2406.13170",
    ),
    _network(
        "clover",
        "trained heads in a row add each guessed token to a state made of the target's states of the whole text",
        "Clover arXiv:2405.00263",
    ),
    _network(
        "eagle",
        "a trained decoder layer guesses from the target's states of the whole text",
        "EAGLE-3 arXiv:2503.01840",
    ),
    _network(
        "falcon",
        "a trained network reads the last tokens as a block and guesses the next block at once",
        "Falcon arXiv:2412.12639",
    ),
    _network(
        "parallel_spec",
        "a trained decoder layer guesses all depths at once from the whole text, with masks for tokens to come",
        "ParallelSpec arXiv:2410.05589",
    ),
    Method(
        "specdiff",
        "specchat.drafters.specdiff:SpecDiff",
        "a trained diffusion model fills a window of masks behind the text, in as many passes as it is told",
        "SpecDiff arXiv:2408.05636",
        options=options.SpecDiffOptions,
        requires=(TRAINED_WEIGHTS,),
    ),
    _masks(
        "prompt_tokens",
        "trained embeddings behind the tree's nodes, in extra rows of the target's own pass, guess further ahead",
        "PPD arXiv:2405.18628",
        options.MaskRowsOptions,
    ),
    _masks(
        "mtp",
        "the same with a trained adapter of the target's attention for these rows alone, and a sampler on top",
        "Your LLM Knows the Future arXiv:2507.11851, SPACE arXiv:2402.11809",
        options.MaskRowsOptions,
    ),
    _masks(
        "speculative_streaming",
        "trained streams beside every node run through the target's last layers alone, and guess further ahead",
        "Speculative Streaming arXiv:2402.11131",
        options.StreamOptions,
    ),
    Method(
        "shipped_mtp",
        "specchat.drafters.trained_network:ShippedMtp",
        "the head that was trained with the target and comes in its files guesses token after token",
        "Multi-token prediction of DeepSeek-V3 arXiv:2412.19437",
        requires=(SHIPPED_HEAD,),
    ),
    Method(
        "layer_skip",
        "specchat.drafters.layer_skip:LayerSkip",
        "the target without some attention and MLP sub-layers, which are searched while chatting",
        "SWIFT arXiv:2410.06916",
        options=options.LayerSkipOptions,
        runs_the_target=True,
    ),
    Method(
        "early_exit",
        "specchat.drafters.early_exit:EarlyExit",
        "the target's first layers; exit and length follow from what each exit would have guessed",
        "DEL arXiv:2504.05598, LayerSkip arXiv:2404.16710",
        options=options.EarlyExitOptions,
        runs_the_target=True,
    ),
    Method(
        "sparse_context",
        "specchat.drafters.sparse_context:SparseContext",
        "the target with the part of its own cache that each layer asks for; another drafter guesses for it in turn",
        "TriForce arXiv:2404.11912",
        options=options.SparseContextOptions,
        runs_the_target=True,
    ),
    Method(
        "pruned",
        "specchat.drafters.pruned:Pruned",
        "the target without the heads, MLP channels or dimensions that matter least",
        "LLM-Pruner arXiv:2305.11627",
        options=options.PrunedOptions,
        runs_the_target=True,
        makes_a_network=True,
        drafts_ahead=True,
    ),
    Method(
        "retrieved_context",
        "specchat.drafters.retrieved_context:RetrievedContext",
        "a smaller model reads only the parts of a long text that match its end, and guesses level by level",
        "RAPID arXiv:2502.20330",
        options=options.RetrievedContextOptions,
        requires=(DRAFT_MODEL,),
        drafts_ahead=True,
    ),
    Method(
        "merge",
        "specchat.drafters.merge:Merge",
        "several drafters in one tree, each guess weighted by the past accuracy of similar guesses",
        "SpecInfer arXiv:2305.09781",
        options=options.MergeOptions,
    ),
    Method(
        "cascade",
        "specchat.drafters.cascade:Cascade",
        "several drafters in order: for each node only the first that has a guess is used",
        "specchat's own, after SuffixDecoding arXiv:2411.04975",
        options=options.CascadeOptions,
    ),
    Method(
        "several",
        "specchat.drafters.several:Several",
        "several drafters that grow a tree each; one tree holds them all",
        "SpecInfer arXiv:2305.09781",
        options=options.SeveralOptions,
    ),
    Method(
        "fuse",
        "specchat.drafters.fuse:Fuse",
        "a draft model's tree, with those looked-up guesses grafted on that it finds likely",
        "RASD arXiv:2503.03434",
        options=options.FuseOptions,
        requires=(DRAFT_MODEL,),
    ),
    Method(
        "grammar",
        "specchat.drafters.grammar:Grammar",
        "text that a JSON schema or a grammar forces; before any other drafter where a reply has one",
        "Guidance (Lundberg et al., 2023)",
    ),
)

GRAMMAR = "grammar"
"""The proposer of guesses that a constraint forces (see `grammar.py`)."""

REFERENCE = "reference"
"""The proposer of guesses from a text that the reply is expected to follow (see `reference.py`)."""
