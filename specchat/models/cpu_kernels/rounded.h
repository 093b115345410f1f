/* Rows of activations rounded to whole numbers of 8 bits, a tile of rows at a time. */

#pragma once

#include "lanes.h"

/* Rows of activations as whole numbers, TILE rows interleaved so that what one step of a product needs lies together. */
typedef struct {
    int groups;
    int8_t *numbers; /* (tiles, groups, GROUP / 4, TILE, 4) */
    float *scales;   /* (tiles, groups, TILE) */
    int32_t *sums;   /* likewise: of the numbers, */
    float *offsets;  /* and times the scale */
} Rounded;

/* One group of each of the first `count` rows of a tile, (GROUP) numbers of each that lie `apart`, times its row's factor
 * and times `norm` unless NULL. What is written of the tile's other rows is not read. */
static inline __attribute__((always_inline)) void round_group(const float *x, size_t apart, int count, const float *factors,
                                                              const float *norm, const Rounded *to, size_t at) {
    vf some[TILE][2 * PARTS], sizes[TILE];
    UNROLLED
    for (int r = 0; r < TILE; r++) {
        UNROLLED
        for (int k = 0; k < 2 * PARTS; k++) {
            some[r][k] = r < count ? load(x + (size_t)r * apart + k * REGISTER) : (vf){0};
            if (norm && r < count) some[r][k] = some[r][k] * factors[r] * load(norm + k * REGISTER);
            sizes[r] = k ? larger(sizes[r], size_of(some[r][k])) : size_of(some[r][k]);
        }
    }
    tf most = max_of_each(sizes), scale = most / 127.0f, step = 127.0f / most;
    step = (tf)((most > 0.0f) & (ti)step);
    vn bytes[TILE][2];
    /* Adding 1.5 · 2^23 rounds to a whole number, and leaves it in the lowest bits. */
    UNROLLED
    for (int r = 0; r < TILE; r++)
        UNROLLED
        for (int half = 0; half < 2; half++) {
            vi whole[PARTS];
            UNROLLED
            for (int k = 0; k < PARTS; k++) whole[k] = (vi)(some[r][half * PARTS + k] * step[r] + 12582912.0f);
            bytes[r][half] = r < count ? narrow(whole) : (vn){0};
        }
    ti sums = interleave(bytes, to->numbers + at * GROUP * TILE);
    *(tf_any *)(to->scales + at * TILE) = scale;
    *(ti_any *)(to->sums + at * TILE) = sums;
    *(tf_any *)(to->offsets + at * TILE) = scale * __builtin_convertvector(sums, tf);
}

static inline __attribute__((always_inline)) void round_whole_groups(const float *x, size_t apart, int count,
                                                                     const float *factors, const float *norm,
                                                                     const Rounded *to, size_t at, int groups) {
    for (int g = 0; g < groups; g++, x += GROUP, at++) {
        if (norm) round_group(x, apart, count, factors, norm + g * GROUP, to, at);
        else round_group(x, apart, count, NULL, NULL, to, at);
    }
}

#define ROWS(rows)                                                                                                     \
    static void round_##rows(const float *x, size_t apart, const float *factors, const float *norm, const Rounded *to, \
                             size_t at, int groups) {                                                                  \
        round_whole_groups(x, apart, rows, factors, norm, to, at, groups);                                             \
    }
ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)
typedef void RoundRows(const float *x, size_t apart, const float *factors, const float *norm, const Rounded *to, size_t at,
                       int groups);
static RoundRows *const ROUND[TILE] = {round_1, round_2, round_3, round_4, round_5, round_6, round_7, round_8};

/* Some groups of one tile: (count, length) columns of rows that lie `apart`, the first of which begin group `first`. Inputs
 * past the length are zeros. */
static void round_groups(const float *x, size_t apart, int count, int length, const float *factors, const float *norm,
                         const Rounded *to, int tile, int first) {
    size_t at = (size_t)tile * (size_t)to->groups + (size_t)first;
    int whole = length / GROUP, column = whole * GROUP;
    ROUND[count - 1](x, apart, factors, norm, to, at, whole);
    if (column == length) return;
    float padded[TILE + 1][GROUP] __attribute__((aligned(64))) = {0};
    size_t bytes = (size_t)(length - column) * sizeof(float);
    for (int r = 0; r < count; r++) memcpy(padded[r], x + (size_t)r * apart + column, bytes);
    if (norm) norm = memcpy(padded[TILE], norm + column, bytes);
    ROUND[count - 1](padded[0], GROUP, factors, norm, to, at + (size_t)whole, 1);
}

/* All of (count, length) rows that lie `apart`. */
static void round_all(const float *rows, size_t apart, int count, int length, Rounded *to) {
    to->groups = (length + GROUP - 1) / GROUP;
    for (int row = 0; row < count; row += TILE) {
        int some = count - row < TILE ? count - row : TILE;
        round_groups(rows + (size_t)row * apart, apart, some, length, NULL, NULL, to, row / TILE, 0);
    }
}

/* A row as it was rounded: (groups · GROUP). */
static void unrounded_row(const Rounded *x, int row, float *to) {
    for (int g = 0; g < x->groups; g++) {
        size_t at = (size_t)(row / TILE) * (size_t)x->groups + (size_t)g;
        const int8_t *numbers = x->numbers + at * GROUP * TILE + row % TILE * 4;
        float scale = x->scales[at * TILE + (size_t)(row % TILE)];
        for (int i = 0; i < GROUP; i++) to[g * GROUP + i] = scale * (float)numbers[i / 4 * TILE * 4 + i % 4];
    }
}
