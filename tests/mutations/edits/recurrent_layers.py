"""Edits that break models with recurrent layers."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

HYBRIDS = "tests/models/test_hybrids.py"

EDITS = (
    Mutation(
        "drafter shipped_mtp",
        "pairs a state with its own token instead of the one that follows",
        "ShippedHead.begin",
        "some = tokens[first : first + CHUNK_TOKENS]",
        "some = history[first : first + min(CHUNK_TOKENS, count - first)]",
        (HYBRIDS, "-k", "own_layer_says"),
        quick=True,
    ),
    Mutation(
        "recurrent layers",
        "lets every node of a tree see its siblings",
        "RecurrentCache.begin",
        "self._seen = plan.mask[:, self._held :]",
        "self._seen = plan.mask[:, self._held :].int().cummax(dim=0).values.bool()",
        (HYBRIDS, "-k", "scan_of_a_tree"),
        quick=True,
    ),
    Mutation(
        "recurrent layers",
        "adds what a delta net was told, whatever its state holds already",
        "RecurrentCache._scan",
        "v = solved.transpose(0, 1)",
        "v = (rates * wanted.transpose(0, 1)).transpose(0, 1)",
        (HYBRIDS, "-k", "scan_of_a_tree"),
    ),
    Mutation(
        "recurrent layers",
        "keeps the states of all rows in place of the accepted path's",
        "RecurrentCache.keep_rows_",
        "self._advance([*range(start - self._held), *(row - self._held for row in rows)])",
        "self._advance(range(self._seen.shape[1]))",
        (HYBRIDS, "-k", "accepted_path"),
    ),
    Mutation(
        "recurrent layers",
        "goes on from where it is after an edit",
        "RecurrentCache.resumable",
        "if tokens >= self._tokens:\n    return tokens",
        "return tokens",
        (HYBRIDS, "-k", "an_edit"),
    ),
)
