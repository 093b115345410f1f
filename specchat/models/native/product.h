/* Rounded rows of activations times weights of whole numbers. */

#pragma once

#include "rounded.h"
#include "team.h"

/* A weight in blocks of LANES outputs. For every block and group there lie together: the numbers of GROUP inputs, four
 * inputs of an output side by side (4-bit numbers hold inputs 0–15 of the group in their low halves and 16–31 in the high
 * ones); LANES scales; and LANES minima where `minima` says so, all float16. */
typedef struct {
    int32_t in, out, bits, minima;
    int64_t bytes;
    const uint8_t *data;
    const float *bias; /* (out), or NULL */
} Product;

/* What one group of inputs, number `at` of a tile's, adds to the outputs of a block, for `count` rows from `row` on; always
 * inlined with constants, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void add_group(const uint8_t *data, int bits, bool minima, const Rounded *x,
                                                            size_t at, int row, int count, vf (*total)[PARTS]) {
    size_t first = at * TILE + (size_t)row;
    const int8_t *inputs = x->numbers + at * GROUP * TILE + 4 * row;
    const float *scales = x->scales + first, *offsets = x->offsets + first;
    const int32_t *sums = x->sums + first;
    total += row;
    const uint16_t *factors = (const uint16_t *)(data + LANES * GROUP / 8 * bits);
    int middle = bits == 4 ? 3 : 7; /* 2^this stands for zero where there are no minima */
    bool halved = bits == 4 || NIBBLES;
    /* Few rows are summed up in two halves: one after another their products would wait for each other. */
    bool two = NIBBLES ? bits == 8 : count <= 2;
    vi sum[TILE][PARTS], more[TILE][PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int k = 0; k < PARTS; k++) {
            sum[r][k] = minima || NIBBLES ? (vi){0} : -((sums[r] - (vi){0}) << middle);
            more[r][k] = (vi){0};
        }
#pragma GCC unroll 8
    for (int j = 0; j < bits; j++) {
        vb low[PARTS], high[PARTS];
#pragma GCC unroll 4
        for (int k = 0; k < PARTS; k++) {
            vb both = *(const vb_any *)(data + 4 * LANES * j + 4 * REGISTER * k);
            low[k] = halved ? both & 15 : both;
            high[k] = (vb)((vu)both >> 4) & 15;
        }
#pragma GCC unroll 8
        for (int r = 0; r < count; r++)
#pragma GCC unroll 4
            for (int k = 0; k < PARTS; k++) {
                vi *first = two && !halved && j % 2 ? &more[r][k] : &sum[r][k], *second = two ? &more[r][k] : &sum[r][k];
                *first = dot4(*first, low[k], inputs + (j * TILE + r) * 4, bits);
                if (halved) *second = dot4(*second, high[k], inputs + ((bits == 4 ? j + 4 : j) * TILE + r) * 4, bits);
            }
    }
#pragma GCC unroll 4
    for (int k = 0; k < PARTS; k++) {
        vf scale = load_half(factors + k * REGISTER), minimum = minima ? load_half(factors + LANES + k * REGISTER) : scale;
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            vi whole = whole_sums(sum[r][k], 1);
            if (two) whole += whole_sums(more[r][k], bits == 8 ? 16 : 1);
            if (NIBBLES && !minima) whole -= (sums[r] - (vi){0}) << middle;
            total[r][k] = multiply_add(__builtin_convertvector(whole, vf), scale * scales[r], total[r][k]);
            if (minima) total[r][k] = multiply_add(minimum, all(offsets[r]), total[r][k]);
        }
    }
}

/* One block of outputs for `count` rows, some of them at once. */
static inline __attribute__((always_inline)) void block_rows(const Product *p, int bits, bool minima, int block,
                                                             const Rounded *x, int tile, int count, float (*out)[LANES]) {
    size_t groups = (size_t)x->groups, step = LANES * GROUP / 8 * bits + (minima ? 2 : 1) * LANES * 2;
    const uint8_t *data = p->data + (size_t)block * groups * step;
    size_t at = (size_t)tile * groups, end = at + groups;
    int some = NIBBLES && bits == 8 ? ROWS_AT_ONCE / 2 : ROWS_AT_ONCE;
    vf total[TILE][PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int k = 0; k < PARTS; k++) total[r][k] = (vf){0};
    for (; at < end; at++, data += step) {
        for (size_t ahead = 0; ahead < step; ahead += 64) fetch(data + AHEAD + ahead);
#pragma GCC unroll 4
        for (int r = 0; r < count; r += some) {
            if (r) __asm__ volatile("" ::: "memory"); /* else compilers store what they unpacked, for the next rows */
            add_group(data, bits, minima, x, at, r, count - r < some ? count - r : some, total);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
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
#define EVERY(kind) {kind##_1, kind##_2, kind##_3, kind##_4, kind##_5, kind##_6, kind##_7, kind##_8}
static BlockRows *const KERNELS[3][TILE] = {EVERY(four), EVERY(minima), EVERY(eight)};

/* One block of outputs of up to TILE rows; lanes past the last output hold zeros. */
static void block_of(const Product *p, int block, const Rounded *x, int tile, int count, float (*out)[LANES]) {
    KERNELS[p->bits == 8 ? 2 : p->minima][count - 1](p, block, x, tile, out);
    for (int at = 0; p->bias && at < LANES; at += REGISTER) {
        vf bias = load_lanes(p->bias + block * LANES + at, p->out - block * LANES - at);
        for (int r = 0; r < count; r++) store(out[r] + at, load(out[r] + at) + bias);
    }
}

static int blocks_of(const Product *p) { return (p->out + LANES - 1) / LANES; }

/* Products that share their input, into columns of one matrix. */
typedef struct {
    const Product *products;
    int count, rows;
    const Rounded *x;
    float *out; /* (rows, width) */
    int width;
    bool add; /* to what is there */
} Multiply;

static void multiply_blocks(void *job, int from, int to, int thread) {
    (void)thread;
    Multiply *m = job;
    int which = 0, before = 0, column = 0;
    for (int at = from; at < to; at++) {
        while (at - before >= blocks_of(&m->products[which])) {
            before += blocks_of(&m->products[which]);
            column += m->products[which++].out;
        }
        const Product *p = &m->products[which];
        int block = at - before, valid = p->out - block * LANES;
        for (int first = 0; first < m->rows; first += TILE) {
            int count = m->rows - first < TILE ? m->rows - first : TILE;
            float result[TILE][LANES] __attribute__((aligned(64)));
            block_of(p, block, m->x, first / TILE, count, result);
            for (int r = 0; r < count; r++) {
                float *place = m->out + (size_t)(first + r) * m->width + column + block * LANES;
                for (int i = 0; i < LANES; i += REGISTER) {
                    vf value = load(result[r] + i);
                    store_lanes(place + i, m->add ? value + load_lanes(place + i, valid - i) : value, valid - i);
                }
            }
        }
    }
}

static void multiply(Team *team, const Product *products, int count, const Rounded *x, int rows, float *out, bool add) {
    Multiply m = {products, count, rows, x, out, 0, add};
    int blocks = 0;
    for (int i = 0; i < count; i++) {
        blocks += blocks_of(&products[i]);
        m.width += products[i].out;
    }
    together(team, PRODUCTS, multiply_blocks, &m, blocks, 1);
}
