"""Penalties for candidates alone agree with those of the whole law."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from specchat.core.sampling import Counts, Sampling, penalise
from specchat.drafters.point_guesses import penalised_candidates

V = 40
KINDS = [
    Sampling(repetition_penalty=1.3),
    Sampling(repetition_penalty=0.7),
    Sampling(presence_penalty=0.8, frequency_penalty=0.3),
    Sampling(repetition_penalty=1.1, presence_penalty=-0.5, frequency_penalty=0.2),
]


@pytest.mark.parametrize("sampling", KINDS, ids=str)
def test_where_all_tokens_are_candidates_their_law_is_that_of_the_penalised_logits(sampling):
    generator = random.Random(3)
    logits = torch.tensor([[generator.gauss(0, 3) for _ in range(V)] for _ in range(3)], dtype=torch.float64)
    counts = Counts(generator.choices(range(V), k=12), generator.choices(range(V), k=20))
    paths = [[], [4, 4, 9], generator.choices(range(V), k=6)]
    logsumexp = torch.logsumexp(logits, dim=1)
    ordered = logits.argsort(dim=1, descending=True)
    logprobs = logits.gather(1, ordered) - logsumexp[:, None]
    tokens, found = penalised_candidates(ordered.numpy(), logprobs.numpy(), logsumexp.numpy(), sampling, counts, paths)
    for row, path in enumerate(paths):
        law = torch.log_softmax(penalise(logits[row], sampling, counts, path).double(), dim=0)
        np.testing.assert_allclose(found[row], law[torch.from_numpy(tokens[row])].numpy(), atol=1e-5)
        assert (np.diff(found[row]) <= 0).all()
        assert sorted(tokens[row].tolist()) == list(range(V))


def test_counts_tell_how_often_a_token_is_in_reply_and_path():
    counts = Counts([1, 2, 2], [2, 3])
    assert counts.often([1, 2, 3, 4, 5], path=[5, 3, 5, 7]) == [0.0, 1.0, 2.0, -1.0, 2.0]


def test_what_cannot_be_stays_impossible():
    tokens, found = penalised_candidates(
        np.array([[3, 5]]), np.array([[0.0, -np.inf]]), np.array([2.0]), KINDS[0], Counts([5]), [[]]
    )
    assert tokens.tolist() == [[3, 5]]
    assert found[0, 1] == -np.inf
