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
        "LayerSkip.matches",
        "zip(said, following[1:], strict=True)",
        "zip(said, following, strict=False)",
        (LAYER_SKIP, "-k", "scores"),
    ),
    Mutation(
        "drafter layer_skip",
        "reads the text again instead of borrowing it",
        "ViewDrafter._hold",
        "self.view.copy_rows_from(text, range(len(text)))",
        "self.view.prefill(text)",
        (LAYER_SKIP, "-k", "go_when"),
    ),
    Mutation(
        "drafter layer_skip",
        "takes every set for a better one",
        "LayerSearch.learn",
        "better = score > self.score",
        "better = True",
        ("tests/drafters/test_layer_search.py",),
    ),
    Mutation(
        "drafter layer_skip",
        "chooses sets at random alone",
        "LayerSearch._promising",
        "return self._least(-(effect + _OPTIMISM * covariance.diagonal().sqrt()))",
        "return self._least(covariance.diagonal())",
        ("tests/drafters/test_layer_search.py",),
    ),
    Mutation(
        "drafter early_exit",
        "compares shadow tokens with the wrong token",
        "EarlyExit._look",
        "decided = [best for (best,) in reading.best_after(path, 1)]",
        "decided = [0 for _ in path]",
        (EARLY_EXIT, "-k", "shadow"),
    ),
    Mutation(
        "drafter early_exit",
        "takes the exit that is right most often",
        "ShadowTokens.best_length",
        "worth = expected / (length * (layer + 1) + self.layers)",
        "worth = expected / (length + self.layers)",
        (EARLY_EXIT, "-k", "choice or text"),
    ),
    Mutation(
        "drafter early_exit",
        "never forgets",
        "ExitRecord.add",
        "self.right = decay * self.right + hit",
        "self.right = self.right + hit",
        (EARLY_EXIT, "-k", "choice or text"),
    ),
    Mutation(
        "drafter pruned",
        "keeps what matters least",
        "Ranking.of",
        "values.argsort(dim=-1, descending=True, stable=True)",
        "values.argsort(dim=-1, descending=False, stable=True)",
        (PRUNING_WEIGHTS, "-k", "less_than"),
    ),
    Mutation(
        "drafter pruned",
        "removes other columns than rows",
        "PrunedSource.dense",
        "values = values[:, columns]",
        "values = values[:, : len(columns)]",
        (PRUNING_WEIGHTS, "-k", "silent"),
    ),
    Mutation(
        "drafter pruned",
        "lets effects on several texts cancel out",
        "taylor_ranking",
        "of_heads.abs().sum(dim=0), of_channels.abs().sum(dim=0)",
        "of_heads.sum(dim=0).abs(), of_channels.sum(dim=0).abs()",
        (PRUNING_WEIGHTS, "-k", "gradients"),
    ),
    Mutation(
        "drafter pruned",
        "takes a norm's mean over the dimensions that are left",
        "KeptUnits.shape",
        "whole.epsilon * whole.hidden / hidden",
        "whole.epsilon",
        (PRUNING_WEIGHTS, "-k", "which_they_are_zero and llama"),
    ),
    Mutation(
        "drafter pruned",
        "leaves queries and keys that are normalised as they are",
        "PrunedSource._is_scaled",
        'self.has("q_norm", layer)',
        "False",
        (PRUNING_WEIGHTS, "-k", "which_they_are_zero and qwen3"),
    ),
    Mutation(
        "drafter pruned",
        "counts a dimension's column of a tied embedding as it is read alone",
        "taylor_ranking",
        "of_embedding + of_head",
        "of_embedding",
        (PRUNING_WEIGHTS, "-k", "gradients and qwen2"),
    ),
    Mutation(
        "drafter pruned",
        "takes what another narrower network learnt for its own",
        "Pruned._recover",
        "self._sizes in self._recovered",
        "self._recovered",
        ("tests/drafters/test_pruned.py", "-k", "another_ratio"),
    ),
    Mutation(
        "drafter lookahead",
        "forgets that a column's rows follow each other",
        "LookaheadWindow.rows",
        "after = len(rows) - 1",
        "pass",
        ("tests/drafters/test_lookahead_window.py", "tests/drafters/test_lookahead.py"),
    ),
    Mutation(
        "drafter lookahead",
        "counts n-grams that begin with tokens of the text",
        "LookaheadWindow.advance",
        "own = self._age >= self._levels",
        "own = True",
        ("tests/drafters/test_lookahead_window.py",),
    ),
    Mutation(
        "drafter lookahead",
        "lets the window stand still",
        "Lookahead.observe",
        "self._pool.add(ngram)",
        "pass",
        ("tests/drafters/test_lookahead.py",),
    ),
    Mutation(
        "drafter jacobi",
        "goes on from the place before",
        "Jacobi._read",
        "behind = range(len(round.emitted), len(standing))",
        "behind = range(len(round.emitted) - 1, len(standing))",
        ("tests/drafters/test_jacobi.py",),
    ),
    Mutation(
        "drafter jacobi",
        "draws without the target's noise",
        "Jacobi.propose",
        "self._tree, self._noisy = tree, not context.sampling.greedy",
        "self._tree, self._noisy = tree, False",
        ("tests/drafters/test_jacobi.py", "-k", "warm"),
    ),
    Mutation(
        "drafter sparse_context",
        "keeps the chunks least like the end of the text",
        "chunk_positions",
        "scores.flip(-1).argsort(dim=-1, descending=True, stable=True)",
        "scores.flip(-1).argsort(dim=-1, descending=False, stable=True)",
        ("tests/indexes/test_text_chunks.py",),
    ),
    Mutation(
        "drafter sparse_context",
        "reads the text itself instead of taking rows of the target's cache",
        "PartByLayer.copy_rows_from",
        "self._view.copy_rows_by_layer(text, chosen)",
        "(lambda *part: None)(text, chosen)",
        ("tests/drafters/test_sparse_context.py", "-k", "reads_nothing"),
    ),
    Mutation(
        "drafter sparse_context",
        "lets every layer hold what the first one asks for",
        "PartByLayer.copy_rows_from",
        "self._view.copy_rows_by_layer(text, chosen)",
        "self._view.copy_rows_by_layer(text, chosen[:1].expand_as(chosen))",
        ("tests/drafters/test_cache_parts.py", "-k", "brute_force"),
    ),
    Mutation(
        "drafter sparse_context",
        "lets every head hold what the first one asks for",
        "KVCache.copy_rows_by_head_",
        "self._copy_layer_(source, layer, slice(head, head + 1), own, 0)",
        "self._copy_layer_(source, layer, slice(head, head + 1), rows[0], 0)",
        ("tests/contracts/test_parts_by_layer.py", "-k", "each_layer_sees_its_own_positions"),
    ),
    Mutation(
        "drafter sparse_context",
        "gives a draft model with a window the last tokens alone",
        "first_and_last",
        "[*text[:_SINKS], *text[_SINKS + left_out :]]",
        "[*text[left_out:]]",
        ("tests/drafters/test_draft_window.py",),
    ),
    Mutation(
        "drafter sparse_context",
        "draws with the target's own noise where the rule looks at probabilities",
        "SparseContext._begin",
        """
if context.wanted is not DrawKind.POINT:
    noise = self._noise(noise).child(str(context.round))
""",
        """
if False:
    noise = self._noise(noise).child(str(context.round))
""",
        ("tests/decoding/test_draw_laws.py", "-k", "members_draw_independently and sparse_context"),
    ),
    Mutation(
        "drafter sparse_context",
        "writes points with noise of its own",
        "SparseContext._begin",
        """
if context.wanted is not DrawKind.POINT:
    noise = self._noise(noise).child(str(context.round))
""",
        """
if True:
    noise = self._noise(noise).child(str(context.round))
""",
        ("tests/drafters/test_sparse_context.py", "-k", "every_guess_is_right"),
    ),
    Mutation(
        "drafter sparse_context",
        "draws with the noise of every other such drafter",
        "SparseContext._begin",
        "self._noise(noise).child(str(context.round))",
        "noise.child(str(context.round))",
        ("tests/decoding/test_draw_laws.py", "-k", "members_draw_independently and sparse_context"),
    ),
)
