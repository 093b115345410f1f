/* Rounded rows of activations times weights of whole numbers. */

#pragma once

#include "rounded.h"

/* A weight in blocks of LANES outputs. For every block and group there lie together: the numbers of GROUP inputs, four
 * inputs of an output side by side (4-bit numbers hold inputs 0–15 of the group in their low halves and 16–31 in the high
 * ones); LANES scales; and LANES minima where `minima` says so, all float16. */
typedef struct {
    int32_t in, out, bits, minima;
    int64_t bytes;
    const uint8_t *data;
    const float *bias; /* (out), or NULL */
} Product;

/* A register of outputs of a row, and what the whole sums of a group add to it, times both scales, and its minima. */
static inline vf add_scaled(vf total, vi whole, vf scale, float row_scale, bool minima, vf minimum, float offset) {
    total = multiply_add(__builtin_convertvector(whole, vf), scale * row_scale, total);
    return minima ? multiply_add(minimum, all(offset), total) : total;
}

/* How many of the rows that are left, from the first of a tile on, are multiplied at once. */
static inline int rows_at_once(int left) { return left <= MOST_ROWS ? left : TILE; }

/* The place of a row's values of which a group has one each, such as its scale, and of four numbers of the group. The row
 * may be in the next tile. */
static inline size_t place_of(const Rounded *x, size_t at, int row) {
    return (at + (size_t)(row / TILE) * (size_t)x->groups) * TILE + (size_t)(row % TILE);
}

static inline const int8_t *numbers_of(const Rounded *x, size_t at, int row, int four) {
    return x->numbers + ((at + (size_t)(row / TILE) * (size_t)x->groups) * GROUP / 4 + (size_t)four) * TILE * 4 + row % TILE * 4;
}

/* What one group of inputs, number `at` of all, adds to the outputs of a block, for `count` rows from `row` of a tile on;
 * always inlined with constants, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void add_group(const uint8_t *data, int bits, bool minima, const Rounded *x,
                                                            size_t at, int row, int count, vf (*total)[PARTS]) {
    total += row;
    const uint16_t *factors = (const uint16_t *)(data + LANES * GROUP / 8 * bits);
    int middle = bits == 4 ? 3 : 7; /* 2^this stands for zero where there are no minima */
    bool counted = minima || NIBBLES || (SIGNED && bits == 8); /* later, or by the products themselves */
    bool halved = bits == 4 || NIBBLES;
    /* Few rows are summed up in two halves: one after another their products would wait for each other. */
    bool two = NIBBLES ? bits == 8 : count <= 2;
    vi sum[MOST_ROWS][PARTS], more[MOST_ROWS][PARTS];
    UNROLLED
    for (int r = 0; r < count; r++)
        UNROLLED
        for (int k = 0; k < PARTS; k++) {
            sum[r][k] = counted ? (vi){0} : -((x->sums[place_of(x, at, row + r)] - (vi){0}) << middle);
            more[r][k] = (vi){0};
        }
    UNROLLED
    for (int j = 0; j < bits; j++) {
        vb low[PARTS], high[PARTS];
        UNROLLED
        for (int k = 0; k < PARTS; k++) {
            vb both = *(const vb_any *)(data + 4 * LANES * j + 4 * REGISTER * k);
            low[k] = halved ? both & 15 : both;
            high[k] = both >> 4;
        }
        UNROLLED
        for (int r = 0; r < count; r++)
            UNROLLED
            for (int k = 0; k < PARTS; k++) {
                vi *first = two && !halved && j % 2 ? &more[r][k] : &sum[r][k], *second = two ? &more[r][k] : &sum[r][k];
                *first = dot4(*first, low[k], numbers_of(x, at, row + r, j), bits);
                if (halved) *second = dot4(*second, high[k], numbers_of(x, at, row + r, bits == 4 ? j + 4 : j), bits);
            }
    }
    UNROLLED
    for (int k = 0; k < PARTS; k++) {
        vf scale = load_half(factors + k * REGISTER), minimum = minima ? load_half(factors + LANES + k * REGISTER) : scale;
        UNROLLED
        for (int r = 0; r < count; r++) {
            vi whole = whole_sums(sum[r][k], 1);
            if (two) whole += whole_sums(more[r][k], bits == 8 ? 16 : 1);
            size_t place = place_of(x, at, row + r);
            if (NIBBLES && !minima) whole -= (x->sums[place] - (vi){0}) << middle;
            total[r][k] = add_scaled(total[r][k], whole, scale, x->scales[place], minima, minimum, x->offsets[place]);
        }
    }
}

/* One block of outputs for `count` rows, some of them at once. */
static inline __attribute__((always_inline)) void block_rows(const Product *p, int bits, bool minima, int block,
                                                             const Rounded *x, int tile, int count, float (*out)[LANES]) {
    size_t groups = (size_t)x->groups, step = LANES * GROUP / 8 * bits + (minima ? 2 : 1) * LANES * 2;
    const uint8_t *data = p->data + (size_t)block * groups * step;
    size_t at = (size_t)tile * groups, end = at + groups;
    int some = NIBBLES && bits == 8 ? ROWS_AT_ONCE / 2 : ROWS_AT_ONCE + MORE_ROWS;
    vf total[MOST_ROWS][PARTS];
    UNROLLED
    for (int r = 0; r < count; r++)
        UNROLLED
        for (int k = 0; k < PARTS; k++) total[r][k] = (vf){0};
    for (; at < end; at++, data += step) {
        for (size_t ahead = 0; ahead < step; ahead += 64) fetch_weights(data + ahead);
        UNROLLED
        for (int r = 0; r < count; r += some) {
            if (r) __asm__ volatile("" ::: "memory"); /* else compilers store what they unpacked, for the next rows */
            add_group(data, bits, minima, x, at, r, count - r < some ? count - r : some, total);
        }
    }
    UNROLLED
    for (int r = 0; r < count; r++)
        UNROLLED
        for (int k = 0; k < PARTS; k++) store(out[r] + k * REGISTER, total[r][k]);
}

typedef void BlockRows(const Product *p, int block, const Rounded *x, int tile, float (*out)[LANES]);

#define KINDS(rows)                                                                                                    \
    static void four_##rows(const Product *p, int block, const Rounded *x, int tile, float (*out)[LANES]) {            \
        block_rows(p, 4, false, block, x, tile, rows, out);                                                            \
    }                                                                                                                  \
    static void minima_##rows(const Product *p, int block, const Rounded *x, int tile, float (*out)[LANES]) {          \
        block_rows(p, 4, true, block, x, tile, rows, out);                                                             \
    }                                                                                                                  \
    static void eight_##rows(const Product *p, int block, const Rounded *x, int tile, float (*out)[LANES]) {           \
        block_rows(p, 8, false, block, x, tile, rows, out);                                                            \
    }
KINDS(1) KINDS(2) KINDS(3) KINDS(4) KINDS(5) KINDS(6) KINDS(7) KINDS(8)
#define UP_TO_A_TILE(kind) kind##_1, kind##_2, kind##_3, kind##_4, kind##_5, kind##_6, kind##_7, kind##_8
#if MORE_ROWS
KINDS(9) KINDS(10) KINDS(11) KINDS(12) KINDS(13) KINDS(14)
#define EVERY(kind) {UP_TO_A_TILE(kind), kind##_9, kind##_10, kind##_11, kind##_12, kind##_13, kind##_14}
#else
#define EVERY(kind) {UP_TO_A_TILE(kind)}
#endif
/* Which kernel a product takes. */
static int kind_of(const Product *p) { return p->bits == 8 ? 2 : p->minima; }

static BlockRows *const KERNELS[3][MOST_ROWS] = {EVERY(four), EVERY(minima), EVERY(eight)};

/* One block of outputs of up to MOST_ROWS rows, without bias. */
static void block_tile(const Product *p, int block, const Rounded *x, int tile, int count, float (*out)[LANES]) {
    KERNELS[kind_of(p)][count - 1](p, block, x, tile, out);
}

static void add_bias(const Product *p, int block, int count, float (*out)[LANES]) {
    for (int at = 0; p->bias && at < LANES; at += REGISTER) {
        vf bias = load_lanes(p->bias + block * LANES + at, p->out - block * LANES - at);
        for (int r = 0; r < count; r++) store(out[r] + at, load(out[r] + at) + bias);
    }
}

static int blocks_of(const Product *p) { return (p->out + LANES - 1) / LANES; }
