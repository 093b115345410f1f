"""Edits that break drafters that are the target itself, with less work or in rows of its own pass."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

EARLY_EXIT = "tests/drafters/test_early_exit.py"
PRUNING_WEIGHTS = "tests/models/test_pruned_weights.py"
LAYER_SKIP = "tests/drafters/test_layer_skip.py"

EDITS = (
    Mutation(
        "drafter layer_skip",
        "scores its guesses against the tokens before",
        "drafters/layer_skip.py",
        "zip(said, following[1:], strict=True)",
        "zip(said, following, strict=False)",
        (LAYER_SKIP, "-k", "scores"),
    ),
    Mutation(
        "drafter layer_skip",
        "reads the text again instead of borrowing it",
        "drafters/target_view.py",
        "self.view.borrow(text, range(len(text)))",
        "self.view.prefill(text)",
        (LAYER_SKIP, "-k", "go_when"),
    ),
    Mutation(
        "drafter layer_skip",
        "takes every set for a better one",
        "drafters/layer_search.py",
        "better = score > self.score",
        "better = True",
        ("tests/drafters/test_layer_search.py",),
    ),
    Mutation(
        "drafter layer_skip",
        "chooses sets at random alone",
        "drafters/layer_search.py",
        "return self._least(-(effect + _OPTIMISM * covariance.diagonal().sqrt()))",
        "return self._least(covariance.diagonal())",
        ("tests/drafters/test_layer_search.py",),
    ),
    Mutation(
        "drafter early_exit",
        "compares shadow tokens with the wrong token",
        "drafters/early_exit.py",
        "decided = [best for (best,) in reading.best_after(path, 1)]",
        "decided = [0 for _ in path]",
        (EARLY_EXIT, "-k", "shadow"),
    ),
    Mutation(
        "drafter early_exit",
        "takes the exit that is right most often",
        "drafters/shadow_tokens.py",
        "worth = expected / (length * (layer + 1) + self.layers)",
        "worth = expected / (length + self.layers)",
        (EARLY_EXIT, "-k", "choice or text"),
    ),
    Mutation(
        "drafter early_exit",
        "never forgets",
        "drafters/shadow_tokens.py",
        "self.right = decay * self.right + hit",
        "self.right = self.right + hit",
        (EARLY_EXIT, "-k", "choice or text"),
    ),
    Mutation(
        "drafter pruned",
        "keeps what matters least",
        "core/network_pruning.py",
        "values.argsort(dim=-1, descending=True, stable=True)",
        "values.argsort(dim=-1, descending=False, stable=True)",
        (PRUNING_WEIGHTS, "-k", "less_than"),
    ),
    Mutation(
        "drafter pruned",
        "removes other columns than rows",
        "models/pruning/pruned_source.py",
        "return values[:, places] if part",
        "return values[:, : len(places)] if part",
        (PRUNING_WEIGHTS, "-k", "silent"),
    ),
    Mutation(
        "drafter pruned",
        "lets effects on several texts cancel out",
        "models/pruning/taylor.py",
        "of_heads.abs().sum(dim=0), of_channels.abs().sum(dim=0)",
        "of_heads.sum(dim=0).abs(), of_channels.sum(dim=0).abs()",
        (PRUNING_WEIGHTS, "-k", "gradients"),
    ),
    Mutation(
        "drafter lookahead",
        "forgets that a column's rows follow each other",
        "structures/lookahead_window.py",
        "                after = len(rows) - 1\n",
        "",
        ("tests/structures/test_lookahead_window.py", "tests/drafters/test_lookahead.py"),
    ),
    Mutation(
        "drafter lookahead",
        "counts n-grams that begin with tokens of the text",
        "structures/lookahead_window.py",
        "own = self._age >= self._levels",
        "own = True",
        ("tests/structures/test_lookahead_window.py",),
    ),
    Mutation(
        "drafter lookahead",
        "lets the window stand still",
        "drafters/lookahead.py",
        "self._pool.add(ngram)",
        "pass",
        ("tests/drafters/test_lookahead.py",),
    ),
    Mutation(
        "drafter jacobi",
        "goes on from the place before",
        "drafters/jacobi.py",
        "behind = range(len(round.emitted), len(standing))",
        "behind = range(len(round.emitted) - 1, len(standing))",
        ("tests/drafters/test_jacobi.py",),
    ),
    Mutation(
        "drafter jacobi",
        "draws without the target's noise",
        "drafters/jacobi.py",
        "self._noisy = tree, not context.sampling.greedy",
        "self._noisy = tree, False",
        ("tests/drafters/test_jacobi.py", "-k", "warm"),
    ),
    Mutation(
        "drafter sparse_context",
        "keeps the chunks least like the end of the text",
        "structures/text_chunks.py",
        "descending=True, stable=True",
        "descending=False, stable=True",
        ("tests/structures/test_text_chunks.py",),
    ),
    Mutation(
        "drafter sparse_context",
        "reads the text itself instead of taking rows of the target's cache",
        "drafters/cache_parts.py",
        "self._view.borrow_of_layers(text, ",
        "(lambda *part: None)(text, ",
        ("tests/drafters/test_sparse_context.py", "-k", "reads_nothing"),
    ),
)
