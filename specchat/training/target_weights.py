"""What a network shares with its target while it is trained: embeddings and head rows, held as plain tables."""

from __future__ import annotations

from torch import Tensor

from specchat.core.seams import Weights
from specchat.models.learned.losses import columns_of
from specchat.models.learned.shared_weights import SharedWeights
from specchat.training.corpus import Corpus


def shared_with(target: Weights, corpus: Corpus, head_tokens: int) -> SharedWeights:
    """The target's weights for the tokens of a corpus: looking a token up is one row of a table.

    Args:
        head_tokens: so many of the most frequent tokens can be guessed.
    """
    occurring = corpus.occurring_tokens()
    table = target.embed(occurring.tolist()).float()
    rows = columns_of(occurring, target.vocab_size).clamp_min(0).to(table.device)
    frequent = corpus.frequent_tokens(head_tokens)

    def embed(tokens: Tensor) -> Tensor:
        return table[rows[tokens]]

    return SharedWeights(embed, frequent, target.head_rows(frequent.tolist()).float())
