/* What Python says of a pass that is one call: which tokens, where, and whom they see, in one array of numbers. */

#pragma once

#include "check.h"
#include "head.h"
#include "stored.h"

/* All rows see the cache's first `common` ones. Behind these lie rows of the same tree that earlier passes read, and then, from
 * `start` on, those of the pass: tokens of the text first, then nodes of the tree. Each follows one of them, or the common
 * ones, and sees itself and all above it. */
typedef struct {
    int32_t rows, missing; /* of the rows, those of the text: they have no logits */
    int32_t start, common, first, count, tapped; /* `first`: position in the text of a row that follows the common ones */
    float scale;             /* factor on embeddings */
    const int32_t *numbers;  /* (count): the tokens; of each row from `common` on which of these it follows, or −1 */
    const Stored *embedding; /* the table that rows of tokens are unpacked from */
    const int32_t *tap_of;   /* as Rows has them */
    float *taps;
    float *states; /* (rows behind the text, hidden): what the head is given is copied there; or NULL */
    HeadAsked asked;
} WholePass;

static int end_of(const WholePass *w) { return w->start + w->rows; }

/* Rows behind the common ones. */
static int behind(const WholePass *w) { return end_of(w) - w->common; }

/* Whether the numbers are as many as the rows say, and memory for states and mask can be asked for. */
static int whole_check(const Decoder *d, const Rows *about, const WholePass *w) {
    if (in_range("rows", w->rows, 1, MOST_QUERIES)) return REFUSED;
    if (in_range("rows of the text", w->missing, 0, w->rows - 1)) return REFUSED;
    if (in_range("the first row", w->start, 0, about->capacity - w->rows)) return REFUSED;
    if (in_range("rows that all see", w->common, 0, w->start)) return REFUSED;
    if (in_range("a position", w->first, 0, MOST_TOKENS)) return REFUSED;
    if (w->embedding->length != d->hidden) return refuse("embeddings of %d numbers, not %d", w->embedding->length, d->hidden);
    if (in_range("numbers", w->count, w->rows + behind(w), w->rows + behind(w))) return REFUSED;
    const int32_t *above = w->numbers + w->rows;
    for (int i = 0; i < behind(w); i++)
        if (in_range("the row above", above[i], -1, i - 1)) return REFUSED;
    return DONE;
}

/* Write the mask, (rows, width), where each row lies, (rows), and its position in the text, (behind). */
static void see(const WholePass *w, uint8_t *mask, int width, int32_t *places, int32_t *positions) {
    const int32_t *above = w->numbers + w->rows;
    size_t end = (size_t)width;
    int before = w->start - w->common;
    for (int i = 0; i < behind(w); i++) {
        positions[i] = above[i] < 0 ? w->first : positions[above[i]] + 1;
        if (i < before) continue;
        places[i - before] = w->common + i;
        memset(mask, 1, (size_t)w->common);
        memset(mask + w->common, 0, end - (size_t)w->common);
        for (int seen = i; seen >= 0; seen = above[seen]) mask[w->common + seen] = 1;
        mask += end;
    }
}

static Rows rows_of(const Rows *about, const WholePass *w, int kinds, float *hidden, const uint8_t *mask,
                    const int32_t *places, const int32_t *positions) {
    Rows rows = *about;
    rows.rows = w->rows;
    rows.end = end_of(w);
    rows.hidden = hidden;
    rows.positions = positions + (w->start - w->common);
    rows.places = places;
    rows.tapped = w->tapped;
    rows.tap_of = w->tap_of;
    rows.taps = w->taps;
    for (int i = 0; i < kinds; i++) {
        rows.kind[i].common = w->common;
        rows.kind[i].mask = mask;
    }
    return rows;
}

/* Rows of tokens, (rows, hidden). An Outcome. */
static int embed(const WholePass *w, float *hidden) {
    Stored tokens = *w->embedding;
    tokens.rows = w->rows;
    tokens.order = w->numbers;
    int outcome = unpack_rows(&tokens, hidden);
    size_t count = outcome == DONE && w->scale != 1.0f ? (size_t)w->rows * (size_t)tokens.length : 0;
    for (size_t i = 0; i < count; i++) hidden[i] *= w->scale;
    return outcome;
}

typedef int LayerReady(int layer);

enum { MOST_TEXTS = 64 };

/* Of the texts that a pass reads together: all rows, those that have logits, and the longest cache prefix that any sees. */
typedef struct { int rows, said, end; } JointSizes;

static int joint_check(const Decoder *d, const Rows *const *about, const WholePass *w, int texts, JointSizes *sizes) {
    if (in_range("texts", texts, 1, MOST_TEXTS)) return REFUSED;
    *sizes = (JointSizes){0};
    for (int i = 0; i < texts; i++) {
        if (whole_check(d, about[i], &w[i])) return REFUSED;
        if (w[i].start != w[i].common) return refuse("text %d: some of its tree was read before", i);
        if (about[i]->place_of || about[i]->mlp) return refuse("text %d: some layers are left out", i);
        sizes->rows += w[i].rows;
        sizes->said += w[i].rows - w[i].missing;
        if (end_of(&w[i]) > sizes->end) sizes->end = end_of(&w[i]);
        if (in_range("rows of all texts", sizes->rows, 1, MOST_QUERIES)) return REFUSED;
    }
    return DONE;
}

/* The text of a pass whose rows are those from `first` on among the rows of several texts. */
static Text text_of_pass(const Rows *about, const WholePass *w, int first) {
    return (Text){about->keys, about->values, about->capacity, w->common, first, w->rows, w->tapped, w->tap_of, w->taps};
}

/* Rows of several texts; of their tables of rotations, which say the same, the longest. */
static Rows joint_rows(const Rows *const *about, int texts, int kinds, const JointSizes *sizes, float *hidden,
                       const uint8_t *mask, const int32_t *places, const int32_t *positions) {
    Rows rows = *about[0];
    rows.rows = sizes->rows;
    rows.end = sizes->end;
    rows.hidden = hidden;
    rows.positions = positions;
    rows.places = places;
    rows.tapped = 0;
    rows.texts = texts;
    for (int i = 0; i < kinds; i++) {
        for (int t = 1; t < texts; t++)
            if (about[t]->kind[i].positions > rows.kind[i].positions) rows.kind[i] = about[t]->kind[i];
        rows.kind[i].common = 0;
        rows.kind[i].mask = mask;
    }
    return rows;
}
