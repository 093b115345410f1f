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
        "_scanned",
        "v = solved.transpose(0, 1).contiguous()",
        "v = (rates * wanted.transpose(0, 1)).transpose(0, 1).contiguous()",
        (HYBRIDS, "-k", "scan_of_a_tree"),
    ),
    Mutation(
        "recurrent layers",
        "lets a row in C read the row before it in place of the row that it follows",
        "models/cpu_kernels/recurrence.h",
        "for (; at >= 0; at = s->below.above[at]) {",
        "for (; at >= 0; at--) {",
        (HYBRIDS, "-k", "scan_of_a_tree"),
        quick=True,
    ),
    Mutation(
        "recurrent layers",
        "convolves in C over the rows before, whichever branch they are of",
        "models/cpu_kernels/recurrence.h",
        "row = c->below.above[row]) inputs",
        "row--) inputs",
        (HYBRIDS, "-k", "convolution_of_a_tree"),
    ),
    Mutation(
        "recurrent layers",
        "lets the state after a path in C decay from its first row on",
        "models/cpu_kernels/recurrence.h",
        "weight[i] = exp_of(total - f->kept_totals[kept_at(row, z->heads, head, 1)]);",
        "weight[i] = exp_of(total);",
        (HYBRIDS, "-k", "scan_of_a_tree"),
    ),
    Mutation(
        "recurrent layers",
        "tells C of a tree as if it were a text",
        "RecurrentCache.begin",
        'array("i", plan.above)',
        'array("i", range(-1, len(plan.above) - 1))',
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
