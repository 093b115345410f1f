/* Blocks of outputs of many rows: some blocks are computed together, for which inputs are loaded once. */

#pragma once

#include "product.h"

#if TOGETHER > 1
/* TOGETHER blocks of outputs for half a tile of rows, as many as there are registers for: an input is spread over a register
 * once for all blocks. Sums are those of add_group. */
static inline __attribute__((always_inline)) void blocks_half(const Product *p, int bits, bool minima, int block,
                                                              const Rounded *x, int tile, int row,
                                                              float (*out)[MOST_ROWS][LANES]) {
    enum { ROWS = TILE / 2, NUMBERS = LANES * GROUP / 8, FOURS = GROUP / 4 };
    size_t groups = (size_t)x->groups, step = (size_t)NUMBERS * bits + (minima ? 2 : 1) * LANES * 2, apart = groups * step;
    size_t first = (size_t)tile * groups;
    const int8_t *inputs = x->numbers + first * GROUP * TILE + 4 * row;
    const float *scales = x->scales + first * TILE + row, *offsets = x->offsets + first * TILE + row;
    const int32_t *sums = x->sums + first * TILE + row;
    const uint8_t *data[TOGETHER], *soon = NULL;
    vf total[TOGETHER][ROWS];
    UNROLLED
    for (int b = 0; b < TOGETHER; b++) {
        data[b] = p->data + (size_t)(block + b) * apart;
        UNROLLED
        for (int r = 0; r < ROWS; r++) total[b][r] = (vf){0};
    }
    if (tile == 0 && row == 0) soon = data[0] + TOGETHER * apart; /* the blocks that follow, fetched with the first rows */
    for (size_t g = 0; g < groups; g++, inputs += GROUP * TILE, scales += TILE, offsets += TILE, sums += TILE) {
        for (size_t ahead = 0; soon && ahead < TOGETHER * step; ahead += 64) fetch(soon + ahead);
        if (soon) soon += TOGETHER * step;
        vi sum[TOGETHER][ROWS];
        UNROLLED
        for (int b = 0; b < TOGETHER; b++) {
            __asm__("" : "+r"(data[b])); /* else compilers make all from one, and have no registers left */
            UNROLLED
            for (int r = 0; r < ROWS; r++) sum[b][r] = minima ? (vi){0} : -((sums[r] - (vi){0}) << (bits == 4 ? 3 : 7));
        }
        UNROLLED
        for (int j = 0; j < FOURS; j++) {
            /* Four inputs: of 4 bits each, those in the low halves of bytes and then those in the high ones. */
            int line = bits == 8 ? j : j / 2, four = bits == 8 ? j : line + j % 2 * FOURS / 2;
            vb numbers[TOGETHER];
            UNROLLED
            for (int b = 0; b < TOGETHER; b++) {
                vb both = *(const vb_any *)(data[b] + 4 * LANES * line);
                numbers[b] = bits == 8 ? both : j % 2 ? high_halves(data[b] + 4 * LANES * line) : both & 15;
            }
            UNROLLED
            for (int r = 0; r < ROWS; r++) {
                vb input = spread4(inputs + (four * TILE + r) * 4);
                UNROLLED
                for (int b = 0; b < TOGETHER; b++) sum[b][r] = dot4_spread(sum[b][r], numbers[b], input);
            }
        }
        UNROLLED
        for (int b = 0; b < TOGETHER; b++) {
            const uint16_t *factors = (const uint16_t *)(data[b] + NUMBERS * bits);
            vf scale = load_half(factors), minimum = minima ? load_half(factors + LANES) : scale;
            UNROLLED
            for (int r = 0; r < ROWS; r++)
                total[b][r] = add_scaled(total[b][r], sum[b][r], scale, scales[r], minima, minimum, offsets[r]);
            data[b] += step;
        }
    }
    UNROLLED
    for (int b = 0; b < TOGETHER; b++)
        UNROLLED
        for (int r = 0; r < ROWS; r++) store(out[b][row + r], total[b][r]);
}

typedef void BlocksHalf(const Product *p, int block, const Rounded *x, int tile, int row, float (*out)[MOST_ROWS][LANES]);

#define HALF(kind, bits, minima)                                                                                       \
    static void kind##_half(const Product *p, int block, const Rounded *x, int tile, int row,                          \
                            float (*out)[MOST_ROWS][LANES]) {                                                          \
        blocks_half(p, bits, minima, block, x, tile, row, out);                                                        \
    }
HALF(four, 4, false) HALF(minima, 4, true) HALF(eight, 8, false)
static BlocksHalf *const HALVES[3] = {four_half, minima_half, eight_half};

/* TOGETHER blocks of outputs of a whole tile, without bias. */
static void whole_tile(const Product *p, int block, const Rounded *x, int tile, float (*out)[MOST_ROWS][LANES]) {
    for (int row = 0; row < TILE; row += TILE / 2) HALVES[kind_of(p)](p, block, x, tile, row, out);
}
#elif defined(__aarch64__)
#include "tiles_arm.h"
#else
static void whole_tile(const Product *p, int block, const Rounded *x, int tile, float (*out)[MOST_ROWS][LANES]) {
    block_tile(p, block, x, tile, TILE, out[0]);
}
#endif

/* Fewer rows wait for their weights more often than they gain: blocks that are read beside each other come from memory
 * later than one after another. */
enum { MANY_ROWS = 16 * TILE };

/* How many of `left` blocks, or groups of outputs, are taken at once for so many rows. */
static int taken_together(int rows, int left) { return rows < MANY_ROWS ? 1 : left < TOGETHER ? left : TOGETHER; }

/* So many blocks of outputs of up to MOST_ROWS rows; lanes past the last output hold zeros. */
static void some_blocks(const Product *p, int block, int blocks, const Rounded *x, int tile, int count,
                        float (*out)[MOST_ROWS][LANES]) {
    int last = block + blocks;
    while (block < last) {
        bool together = count == TILE && last - block >= TOGETHER;
        int step = together ? TOGETHER : 1;
        if (together) whole_tile(p, block, x, tile, out);
        else block_tile(p, block, x, tile, count, out[0]);
        for (int end = block + step; block < end; block++, out++) add_bias(p, block, count, out[0]);
    }
}
