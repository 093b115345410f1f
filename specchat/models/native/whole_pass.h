/* What Python says of a pass that is one call: which tokens, where, and whom they see, in one array of numbers. */

#pragma once

#include "check.h"
#include "head.h"
#include "stored.h"

/* Rows are tokens of the text first, then nodes of a tree. All see the cache's first `common` rows; a token of the text also
 * those of the pass up to itself, a node all of the text's and the cache rows of its path. */
typedef struct {
    int32_t rows, missing; /* of the rows, those of the text: they have no logits */
    int32_t end, common, count, tapped;
    const int32_t *numbers;  /* (count): tokens, positions, cache rows, of each node the end of its path, paths */
    const Stored *embedding; /* the table that rows of tokens are unpacked from */
    const int32_t *tap_of;   /* as Rows has them */
    float *taps;
    float *states; /* (rows behind the text, hidden): what the head is given is copied there; or NULL */
    HeadAsked asked;
} WholePass;

/* Whether the numbers are as many as the rows say, and memory for states and mask can be asked for. */
static int whole_check(const Decoder *d, const Rows *about, const WholePass *w) {
    if (in_range("rows", w->rows, 1, MOST_QUERIES)) return REFUSED;
    if (in_range("rows of the text", w->missing, 0, w->rows - 1)) return REFUSED;
    if (in_range("rows to look at", w->end, w->rows, about->capacity)) return REFUSED;
    if (in_range("rows that all see", w->common, 0, w->end - w->rows)) return REFUSED;
    if (w->embedding->length != d->hidden) return refuse("embeddings of %d numbers, not %d", w->embedding->length, d->hidden);
    const int32_t *path_end = w->numbers + 3 * w->rows;
    int nodes = w->rows - w->missing, before = 0;
    if (w->count < 3 * w->rows + nodes) return refuse("%d numbers about %d rows", w->count, w->rows);
    for (int i = 0; i < nodes; before = path_end[i++])
        if (path_end[i] < before) return refuse("a path from %d to %d", before, path_end[i]);
    return in_range("numbers", w->count, 3 * w->rows + nodes + before, 3 * w->rows + nodes + before);
}

/* Write the mask, (rows, end). */
static int see(const WholePass *w, uint8_t *mask) {
    const int32_t *places = w->numbers + 2 * w->rows, *path_end = places + w->rows, *path = path_end + w->rows - w->missing;
    for (int row = 0, at = 0; row < w->rows; row++, mask += w->end) {
        memset(mask, 1, (size_t)w->common);
        memset(mask + w->common, 0, (size_t)(w->end - w->common));
        for (int i = 0; i < w->missing && i <= row; i++)
            if (in_range("a cache row", places[i], 0, w->end - 1)) return REFUSED;
            else mask[places[i]] = 1;
        for (; row >= w->missing && at < path_end[row - w->missing]; at++)
            if (in_range("a cache row", path[at], 0, w->end - 1)) return REFUSED;
            else mask[path[at]] = 1;
    }
    return DONE;
}

static Rows rows_of(const Rows *about, const WholePass *w, int kinds, float *hidden, const uint8_t *mask) {
    Rows rows = *about;
    rows.rows = w->rows;
    rows.end = w->end;
    rows.hidden = hidden;
    rows.positions = w->numbers + w->rows;
    rows.places = w->numbers + 2 * w->rows;
    rows.tapped = w->tapped;
    rows.tap_of = w->tap_of;
    rows.taps = w->taps;
    for (int i = 0; i < kinds; i++) {
        rows.kind[i].common = w->common;
        rows.kind[i].mask = mask;
    }
    return rows;
}
