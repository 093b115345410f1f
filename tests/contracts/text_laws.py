"""Whether texts are distributed as a model says: exact laws by enumeration, and how plausible samples are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specchat.core.context import Context
from specchat.core.sampling import Sampling
from specchat.core.tree import TokenTree
from specchat.models.backends.scripted import Says


def chi_square_p(counts: Sequence[float], expected: Sequence[float]) -> float:
    """How likely counts as far from the expected ones as these are. Cells under 5 expected are joined."""
    assert abs(sum(counts) - sum(expected)) < 1e-6 * sum(expected)
    cells = sorted(zip(expected, counts, strict=True))
    joined: list[list[float]] = []
    rest = [0.0, 0.0]
    for e, c in cells:
        rest = [rest[0] + e, rest[1] + c]
        if rest[0] >= 5:
            joined.append(rest)
            rest = [0.0, 0.0]
    if joined:
        joined[-1] = [joined[-1][0] + rest[0], joined[-1][1] + rest[1]]
    if rest[0] == 0 and rest[1] > 0:
        return 0.0  # something impossible happened
    if len(joined) < 2:
        return 1.0
    statistic = sum((c - e) ** 2 / e for e, c in joined)
    return float(
        torch.special.gammaincc(torch.tensor((len(joined) - 1) / 2, dtype=torch.float64), torch.tensor(statistic / 2))
    )


def exact_laws(says: Says, prompt: Sequence[int], length: int, sampling: Sampling, vocab_size: int) -> dict[Any, float]:
    """Every text of `length` tokens with its probability under the target, by enumeration."""
    context = Context(list(prompt), len(prompt), vocab_size, sampling)
    tree = TokenTree(context.root, vocab_size).freeze()
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for text, p in texts.items():
            here = Context([*prompt, *text], len(prompt), vocab_size, sampling)
            law = here.law_after(tree, 0, says([*prompt, *text])).dense(vocab_size)
            for token, q in enumerate(law.tolist()):
                if q > 0:
                    longer[(*text, token)] = p * q
        texts = longer
    return texts


def law_p_values(samples: Sequence[Sequence[int]], exact: dict[Any, float]) -> dict[str, float]:
    """p-values of the samples at every position, of every two neighbours, and of the whole."""
    length = len(samples[0])
    views: dict[str, Callable[[Sequence[int]], tuple[int, ...]]] = {}
    for i in range(length):
        views[f"position {i}"] = lambda text, i=i: (text[i],)
    for i in range(length - 1):
        views[f"positions {i} and {i + 1}"] = lambda text, i=i: tuple(text[i : i + 2])
    found: dict[str, float] = {}
    for name, view in views.items():
        expected: dict[tuple[int, ...], float] = {}
        for text, p in exact.items():
            expected[view(text)] = expected.get(view(text), 0.0) + p * len(samples)
        counts = dict.fromkeys(expected, 0.0)
        impossible = False
        for sample in samples:
            if view(sample) in counts:
                counts[view(sample)] += 1
            else:
                impossible = True
        found[name] = 0.0 if impossible else chi_square_p(list(counts.values()), list(expected.values()))
    return found
