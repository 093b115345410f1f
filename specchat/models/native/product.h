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

/* One block of outputs for `count` rows; always inlined with constants, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void block_rows(const Product *p, int bits, bool minima, int block,
                                                             const Rounded *x, int tile, int count, vf *out) {
    size_t groups = (size_t)x->groups, wide = LANES * GROUP / 8 * bits, step = wide + (minima ? 2 : 1) * LANES * 2;
    const uint8_t *data = p->data + (size_t)block * groups * step;
    const int8_t *inputs = x->numbers + (size_t)tile * groups * GROUP * TILE;
    const float *row_scales = x->scales + (size_t)tile * groups * TILE;
    const int32_t *row_sums = x->sums + (size_t)tile * groups * TILE;
    const float *row_offsets = x->offsets + (size_t)tile * groups * TILE;
    int middle = bits == 4 ? 3 : 7; /* 2^this stands for zero where there are no minima */
    vf total[TILE];
#pragma GCC unroll 8
    for (int r = 0; r < count; r++) total[r] = (vf){0};
    for (size_t g = 0; g < groups; g++, data += step) {
        for (size_t ahead = 0; ahead < step; ahead += 64) fetch(data + AHEAD + ahead);
        /* Few rows are summed up in two halves: one after another their products would wait for each other. */
        bool apart = count <= 2;
        vi sum[TILE], more[2] = {{0}, {0}};
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) sum[r] = minima ? (vi){0} : -((row_sums[r] - (vi){0}) << middle);
        if (bits == 4) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                vb both = *(const vb_any *)(data + 64 * j);
                vb low = both & 15, high = (vb)((vu)both >> 4) & 15;
#pragma GCC unroll 8
                for (int r = 0; r < count; r++) {
                    sum[r] = dot4(sum[r], low, inputs + (j * TILE + r) * 4, bits);
                    vi *to = apart ? &more[r] : &sum[r];
                    *to = dot4(*to, high, inputs + ((j + 4) * TILE + r) * 4, bits);
                }
            }
        } else {
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                vb each = *(const vb_any *)(data + 64 * j);
#pragma GCC unroll 8
                for (int r = 0; r < count; r++) {
                    vi *to = apart && j % 2 ? &more[r] : &sum[r];
                    *to = dot4(*to, each, inputs + (j * TILE + r) * 4, bits);
                }
            }
        }
        vf scale = load_half((const uint16_t *)(data + wide));
        vf minimum = minima ? load_half((const uint16_t *)(data + wide) + LANES) : scale;
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            vf whole = __builtin_convertvector(apart ? sum[r] + more[r] : sum[r], vf);
            total[r] = fma16(whole, scale * row_scales[r], total[r]);
            if (minima) total[r] = fma16(minimum, all(row_offsets[r]), total[r]);
        }
        inputs += GROUP * TILE;
        row_scales += TILE;
        row_sums += TILE;
        row_offsets += TILE;
    }
#pragma GCC unroll 8
    for (int r = 0; r < count; r++) out[r] = total[r];
}

typedef void BlockRows(const Product *p, int block, const Rounded *x, int tile, vf *out);

#define KINDS(rows)                                                                                                    \
    static void four_##rows(const Product *p, int block, const Rounded *x, int tile, vf *out) {                        \
        block_rows(p, 4, false, block, x, tile, rows, out);                                                            \
    }                                                                                                                  \
    static void minima_##rows(const Product *p, int block, const Rounded *x, int tile, vf *out) {                      \
        block_rows(p, 4, true, block, x, tile, rows, out);                                                             \
    }                                                                                                                  \
    static void eight_##rows(const Product *p, int block, const Rounded *x, int tile, vf *out) {                       \
        block_rows(p, 8, false, block, x, tile, rows, out);                                                            \
    }
KINDS(1) KINDS(2) KINDS(3) KINDS(4) KINDS(5) KINDS(6) KINDS(7) KINDS(8)
#define EVERY(kind) {kind##_1, kind##_2, kind##_3, kind##_4, kind##_5, kind##_6, kind##_7, kind##_8}
static BlockRows *const KERNELS[3][TILE] = {EVERY(four), EVERY(minima), EVERY(eight)};

/* One block of outputs of up to TILE rows; lanes past the last output hold zeros. */
static void block_of(const Product *p, int block, const Rounded *x, int tile, int count, vf *out) {
    KERNELS[p->bits == 8 ? 2 : p->minima][count - 1](p, block, x, tile, out);
    if (p->bias) {
        vf bias = load_lanes(p->bias + block * LANES, p->out - block * LANES);
        for (int r = 0; r < count; r++) out[r] += bias;
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
            vf result[TILE];
            block_of(p, block, m->x, first / TILE, count, result);
            for (int r = 0; r < count; r++) {
                float *place = m->out + (size_t)(first + r) * m->width + column + block * LANES;
                if (m->add) result[r] += load_lanes(place, valid);
                store_lanes(place, result[r], valid);
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
