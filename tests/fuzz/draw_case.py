"""A draw in C from a row of logits of any size, with any sampling, and with tokens that may not be there."""

from __future__ import annotations

from random import Random

import torch

from specchat.core.sampling import Counts, Sampling
from specchat.core.target_draw import NativeDraw, draw_library

_ODD = (0.0, -0.0, 1e38, -1e38, float("inf"), float("-inf"), float("nan"))


def run_draw(seed: int) -> None:
    """Draw some tokens; each is one of the row, or torch is to judge."""
    random = Random(seed)
    vocab_size = random.choice([1, 2, 7, 8, 9, 63, 64, 65, random.randint(1, 5000)])
    library = draw_library()
    assert library is not None, "draws are asked for only where it is compiled"
    native = NativeDraw(library, vocab_size)
    for _ in range(10):
        row = torch.randn(vocab_size, generator=torch.Generator().manual_seed(random.getrandbits(32)))
        row *= random.choice([0.0, 0.1, 3.0, 100.0])
        for _ in range(random.choice([0, 0, 1, 3])):
            row[random.randrange(vocab_size)] = random.choice(_ODD)
        token = native.draw(row.data_ptr(), _sampling(random), *_seen(random, vocab_size), random.getrandbits(64))
        assert token is None or 0 <= token < vocab_size, f"token {token} of {vocab_size}"


def _sampling(random: Random) -> Sampling:
    return Sampling(
        temperature=random.choice([0.0, 1e-4, 0.5, 2.0]),
        top_k=random.choice([0, 1, 20, 10_000]),
        top_p=random.choice([1.0, 0.9, 1e-12, 1.0 - 2.0**-53]),
        min_p=random.choice([0.0, 0.05, 1.0]),
        repetition_penalty=random.choice([1.0, 1.1, 0.5]),
        presence_penalty=random.choice([0.0, 1.5, -2.0]),
        frequency_penalty=random.choice([0.0, 0.3, -2.0]),
    )


def _seen(random: Random, vocab_size: int) -> tuple[Counts, list[int]]:
    """A text and a path, now and then with a token that has no logit."""
    beyond = random.choice([0, 0, 0, 1])
    text, path = (
        [random.randrange(-beyond, vocab_size + beyond) for _ in range(random.choice([0, 1, 30]))] for _ in range(2)
    )
    return Counts(text[::2], text[1::2]), path
