"""What a network shares with its target while it is trained: embeddings and head rows, held as plain tables."""

from __future__ import annotations

from itertools import chain, zip_longest

import torch
from torch import Tensor

from specchat.core.seams import Weights
from specchat.models.draft_heads.losses import columns_of
from specchat.models.draft_heads.shared_weights import SharedWeights
from specchat.training.corpus import Corpus


def shared_with(target: Weights, corpus: Corpus, head_tokens: int, known: Tensor | None = None) -> SharedWeights:
    """The target's weights for the tokens of a corpus: looking a token up is one row of a table.

    Args:
        head_tokens: so many of the most frequent tokens can be guessed.
        known: (H,) int64 the tokens of another training, the most frequent first: they and those of the corpus take
            turns.
    """
    occurring = corpus.occurring_tokens()
    table = target.embed(occurring.tolist()).float()
    rows = columns_of(occurring, target.vocab_size).clamp_min(0).to(table.device)
    frequent = corpus.frequent_tokens(head_tokens)
    if known is not None:
        frequent = _in_turn(frequent, known)[:head_tokens]

    def embed(tokens: Tensor) -> Tensor:
        return table[rows[tokens]]

    return SharedWeights(embed, frequent, target.head_rows(frequent.tolist()).float())


def _in_turn(one: Tensor, other: Tensor) -> Tensor:
    """The first of each list, then the second of each, and so on, every token once."""
    turns = chain.from_iterable(zip_longest(one.tolist(), other.tolist()))
    return torch.tensor(list(dict.fromkeys(token for token in turns if token is not None)))
