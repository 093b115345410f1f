"""Options of the drafters, apart from their code so that listing them imports no torch."""

from specchat.drafters.options.combined_drafters import CascadeOptions, FuseOptions, MergeOptions, SeveralOptions
from specchat.drafters.options.draft_models import (
    CrossVocabularyOptions,
    DraftModelOptions,
    RetrievedContextOptions,
)
from specchat.drafters.options.lookups import (
    DatastoreOptions,
    PromptLookupOptions,
    SuffixOptions,
    TokenRecyclingOptions,
)
from specchat.drafters.options.parallel_decoding import JacobiOptions, LookaheadOptions
from specchat.drafters.options.target_views import (
    EarlyExitOptions,
    LayerSkipOptions,
    PrunedOptions,
    SparseContextOptions,
)
from specchat.drafters.options.trained_networks import MaskRowsOptions, TrainedNetworkOptions, trained_weights

__all__ = [
    "CascadeOptions",
    "CrossVocabularyOptions",
    "DatastoreOptions",
    "DraftModelOptions",
    "EarlyExitOptions",
    "FuseOptions",
    "JacobiOptions",
    "LayerSkipOptions",
    "LookaheadOptions",
    "MaskRowsOptions",
    "MergeOptions",
    "PromptLookupOptions",
    "PrunedOptions",
    "RetrievedContextOptions",
    "SeveralOptions",
    "SparseContextOptions",
    "SuffixOptions",
    "TokenRecyclingOptions",
    "TrainedNetworkOptions",
    "trained_weights",
]
