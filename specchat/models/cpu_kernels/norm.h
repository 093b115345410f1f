/* Rows of states normalised: rounded for a product, or added to the states. */

#pragma once

#include "workspace.h"

static float mean_square(const float *x, int length) {
    return dot(x, x, length) / (float)length;
}

/* Some values of a row times a factor and, where there are any, times their weights. */
static void scale_row(const float *x, const float *weight, float factor, int length, float *to) {
    int i = 0;
    if (weight == NULL) {
        for (; i + REGISTER <= length; i += REGISTER) store(to + i, load(x + i) * factor);
        for (; i < length; i++) to[i] = x[i] * factor;
        return;
    }
    for (; i + REGISTER <= length; i += REGISTER) store(to + i, load(x + i) * factor * load(weight + i));
    for (; i < length; i++) to[i] = x[i] * factor * weight[i];
}

static float norm_factor(const float *x, int length, float epsilon) {
    return 1.0f / sqrtf(mean_square(x, length) + epsilon);
}

/* Without weights where there are none. */
static void norm_row(const float *x, const float *weight, int length, float epsilon, float *to) {
    scale_row(x, weight, norm_factor(x, length, epsilon), length, to);
}

/* Add what was computed to a row's state, normalised. */
static void add_normed(Pass *p, int row) {
    int length = p->decoder->hidden;
    float *state = p->hidden + (size_t)row * length, *added = p->added + (size_t)row * length;
    norm_row(added, p->norm, length, p->decoder->epsilon, added);
    for (int i = 0; i < length; i++) state[i] += added[i];
}

enum { FEW_ROWS = 4 }; /* what is done row by row is too little to share out for so many */

/* Rows that are rounded for a product, in pieces: some columns of a tile of rows. Rows of a tile lie interleaved, so
 * threads that took whole rows of one tile would write to the same cache lines. */
typedef struct {
    const float *rows, *norm; /* (count, length), and the factors of a norm; NULL where nothing is normalised */
    float epsilon;
    int count, length, parts; /* of a tile */
    const Rounded *to;
} Rounding;

static void round_piece(const Rounding *r, int tile, int first, int end) {
    int row = tile * TILE, count = r->count - row < TILE ? r->count - row : TILE;
    size_t length = (size_t)r->length;
    int column = first * GROUP, columns = (end * GROUP < r->length ? end * GROUP : r->length) - column;
    const float *rows = r->rows + (size_t)row * length;
    float factors[TILE];
    for (int i = 0; i < count && r->norm; i++) factors[i] = norm_factor(rows + (size_t)i * length, r->length, r->epsilon);
    const float *norm = r->norm ? r->norm + column : NULL;
    round_groups(rows + column, length, count, columns, factors, norm, r->to, tile, first);
}

static void round_pieces(void *job, int from, int to, int thread) {
    (void)thread;
    const Rounding *r = job;
    for (int piece = from; piece < to; piece++) {
        int part = piece % r->parts, groups = r->to->groups;
        round_piece(r, piece / r->parts, groups * part / r->parts, groups * (part + 1) / r->parts);
    }
}

/* Few rows are too little to share out; tiles that are enough for all threads are shared out whole. */
static void round_rows(Team *team, const float *rows, const float *norm, float epsilon, int count, int length, Rounded *to) {
    int tiles = (count + TILE - 1) / TILE, parts = count <= FEW_ROWS || tiles >= 2 * team->threads ? 1 : team->threads;
    to->groups = (length + GROUP - 1) / GROUP;
    Rounding rounding = {rows, norm, epsilon, count, length, parts, to};
    together(team, ROUNDING, round_pieces, &rounding, tiles * parts, 1);
}

static void add_rows(void *job, int from, int to, int thread) {
    (void)thread;
    for (int row = from; row < to; row++) add_normed(job, row);
}
