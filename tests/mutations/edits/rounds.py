"""Edits that break the round: early pruning, truncation, drawing."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

PRUNING = "tests/decoding/test_early_pruning.py"

EDITS = (
    Mutation(
        "pruning",
        "drops the likely nodes",
        "EarlyPruning._likely",
        "(node for node, rank in zip(asked, ranks.tolist(), strict=True) if rank < self._keep)",
        "(node for node, rank in zip(asked, ranks.tolist(), strict=True) if rank >= self.keep)",
        (PRUNING, "-k", "likely or among"),
        quick=True,
    ),
    Mutation(
        "pruning",
        "asks the head at the node instead of at its parent",
        "EarlyPruning._likely",
        "rows = logits[[row_of[tree.parents[node]] for node in asked]]",
        "rows = self.head.logits(hidden[[places[node] for node in asked]])",
        (PRUNING, "-k", "likely"),
    ),
    Mutation(
        "pruning",
        "learns the early head from the wrong layer",
        "EarlyHead._add",
        "late.double() - early.double()",
        "early.double()",
        ("tests/decoding/test_early_head.py",),
    ),
    Mutation(
        "pruning",
        "adds what does not depend on the early states",
        "EarlyHead._given",
        "states @ self._basis.to(states.dtype)",
        "0 * states @ self._basis.to(states.dtype)",
        ("tests/decoding/test_early_head.py", "-k", "low_rank"),
    ),
    Mutation(
        "round",
        "takes a device's time when the pass was asked for",
        "Speculator.settle",
        "(submitted.returned if self._on_host else judged) - submitted.given",
        "submitted.returned - submitted.given",
        ("tests/decoding/test_timings.py",),
    ),
    Mutation(
        "truncation",
        "keeps other tokens than the law does where they tie",
        "truncate",
        "least = best[:, top_k - 1 : top_k] if top_k else None",
        "least = best[:, top_k - 1 : top_k] + 1e-6 if top_k else None",
        ("tests/core/test_target_draw.py", "-k", "as_likely"),
    ),
    Mutation(
        "truncation",
        "keeps one token more where top-p is exactly the mass of those before it",
        "truncate",
        "(mass[:, :-1] < sampling.top_p).sum",
        "(mass[:, :-1] <= sampling.top_p).sum",
        ("tests/core/test_sampling.py", "-k", "smallest_set"),
        quick=True,
    ),
    Mutation(
        "truncation",
        "takes more tokens to be needed where those looked at have exactly the mass of top-p",
        "truncate",
        "known & (mass[:, -1] >= sampling.top_p)",
        "known & (mass[:, -1] > sampling.top_p)",
        ("tests/core/test_sampling.py", "-k", "smallest_set"),
    ),
    Mutation(
        "drawing in C",
        "looks at too few tokens for top-p",
        "core/native/draw.c",
        "(1 - s->top_p) * total / row->width",
        "(1 - s->top_p) * total",
        ("tests/core/test_target_draw.py",),
    ),
    Mutation(
        "drawing in C",
        "forgets the path's penalties",
        "core/native/draw.c",
        "for (int i = 0; i < depth; i++) {",
        "for (int i = 0; i < 0; i++) {",
        ("tests/core/test_target_draw.py",),
    ),
    Mutation(
        "drawing in C",
        "weighs what top-k excluded",
        "core/native/draw.c",
        "if (row->near[i] < least) row->weights[i] = 0;",
        "",
        ("tests/core/test_target_draw.py",),
    ),
    Mutation(
        "drawing in C",
        "lets no unlikely token win by its noise",
        "core/native/draw.c",
        "least_bits(winner.score - (double)least)",
        "least_bits(winner.score - (double)least + 1)",
        ("tests/core/test_target_draw.py",),
    ),
    Mutation(
        "drawing in C",
        "takes a bucket too high",
        "core/native/selection.h",
        "above + weight[bucket] < wanted",
        "above + weight[bucket] <= wanted",
        ("tests/core/test_target_draw.py",),
    ),
)
