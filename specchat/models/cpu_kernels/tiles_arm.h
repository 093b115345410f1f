/* Products of whole tiles of rows on 64-bit ARM: half a block of outputs at a time, whose sums stay in sixteen registers for
 * all rows. So a weight is loaded and unpacked once for eight rows, and inputs are not spread over registers. */

#pragma once

#include "product.h"

enum { HALF = PARTS / 2, FOURS = 4 * TILE }; /* registers of outputs; bytes of four inputs of each row */

static inline vb load_bytes(const uint8_t *at) { return *(const vb_any *)at; }

#if defined(__ARM_FEATURE_MATMUL_INT8)
/* An instruction multiplies eight inputs of two rows with two outputs. So while they are added, sum[2i][k] holds the first
 * two outputs of register k for rows 2i and 2i + 1 in turn, and sum[2i + 1][k] its other two. */
static inline vb first_pairs(vb a, vb b) { return (vb)vzip1q_u32((uint32x4_t)a, (uint32x4_t)b); }
static inline vb second_pairs(vb a, vb b) { return (vb)vzip2q_u32((uint32x4_t)a, (uint32x4_t)b); }

static inline __attribute__((always_inline)) void begin_sums(vi (*sum)[HALF], const int32_t *sums, int middle) {
    UNROLLED
    for (int r = 0; r < TILE; r++) {
        int64_t two;
        memcpy(&two, sums + r / 2 * 2, sizeof two);
        UNROLLED
        for (int k = 0; k < HALF; k++) sum[r][k] = -((vi)vdupq_n_s64(two) << middle);
    }
}

/* Of two registers with four inputs of four outputs each, two with eight inputs of two outputs. */
static inline __attribute__((always_inline)) void arrange(vb (*numbers)[HALF]) {
    UNROLLED
    for (int k = 0; k < HALF; k++) {
        vb first = numbers[0][k], second = numbers[1][k];
        numbers[0][k] = first_pairs(first, second);
        numbers[1][k] = second_pairs(first, second);
    }
}

static inline __attribute__((always_inline)) void add_eight(vi (*sum)[HALF], const vb (*numbers)[HALF], const int8_t *inputs) {
    UNROLLED
    for (int r = 0; r < TILE; r += 2) {
        const uint8_t *at = (const uint8_t *)inputs + r / 4 * 16;
        vb first = load_bytes(at), second = load_bytes(at + FOURS);
        int8x16_t x = (int8x16_t)(r % 4 ? second_pairs(first, second) : first_pairs(first, second));
        UNROLLED
        for (int n = 0; n < 2; n++)
            UNROLLED
            for (int k = 0; k < HALF; k++)
                sum[r + n][k] = (vi)vusmmlaq_s32((int32x4_t)sum[r + n][k], (uint8x16_t)numbers[n][k], x);
    }
}

static inline __attribute__((always_inline)) void end_sums(vi (*sum)[HALF]) {
    UNROLLED
    for (int r = 0; r < TILE; r += 2)
        UNROLLED
        for (int k = 0; k < HALF; k++) {
            int32x4_t first = (int32x4_t)sum[r][k], second = (int32x4_t)sum[r + 1][k];
            sum[r][k] = (vi)vuzp1q_s32(first, second);
            sum[r + 1][k] = (vi)vuzp2q_s32(first, second);
        }
}
#else
/* An instruction multiplies four inputs of one row, one of four in a register, with four outputs. */
static inline __attribute__((always_inline)) void begin_sums(vi (*sum)[HALF], const int32_t *sums, int middle) {
    UNROLLED
    for (int r = 0; r < TILE; r++)
        UNROLLED
        for (int k = 0; k < HALF; k++) sum[r][k] = -((sums[r] - (vi){0}) << middle);
}

static inline void arrange(vb (*numbers)[HALF]) { (void)numbers; }

static inline __attribute__((always_inline)) void add_eight(vi (*sum)[HALF], const vb (*numbers)[HALF], const int8_t *inputs) {
    UNROLLED
    for (int n = 0; n < 2; n++)
        UNROLLED
        for (int r = 0; r < TILE; r += 4) {
            int8x16_t x = vld1q_s8(inputs + n * FOURS + 4 * r);
            UNROLLED
            for (int k = 0; k < HALF; k++) {
                int8x16_t some = (int8x16_t)numbers[n][k];
                sum[r][k] = (vi)vdotq_laneq_s32((int32x4_t)sum[r][k], some, x, 0);
                sum[r + 1][k] = (vi)vdotq_laneq_s32((int32x4_t)sum[r + 1][k], some, x, 1);
                sum[r + 2][k] = (vi)vdotq_laneq_s32((int32x4_t)sum[r + 2][k], some, x, 2);
                sum[r + 3][k] = (vi)vdotq_laneq_s32((int32x4_t)sum[r + 3][k], some, x, 3);
            }
        }
}

static inline void end_sums(vi (*sum)[HALF]) { (void)sum; }
#endif

/* What one group of inputs adds to half a block for a whole tile; as add_group. */
static inline __attribute__((always_inline)) void add_half_group(const uint8_t *data, int bits, bool minima, const Rounded *x,
                                                                 size_t at, int half, vf (*total)[PARTS]) {
    enum { HALF_BYTES = 4 * REGISTER * HALF };
    const int8_t *inputs = x->numbers + at * GROUP * TILE;
    const float *scales = x->scales + at * TILE, *offsets = x->offsets + at * TILE;
    const uint16_t *factors = (const uint16_t *)(data + LANES * GROUP / 8 * bits) + half * HALF * REGISTER;
    vi sum[TILE][HALF] = {{{0}}};
    if (!minima && !(SIGNED && bits == 8)) begin_sums(sum, x->sums + at * TILE, bits == 4 ? 3 : 7);
    UNROLLED
    for (int line = 0; line < bits; line += 2, inputs += 2 * FOURS) {
        __asm__ volatile("" ::: "memory"); /* else compilers load for later lines, and have no registers left */
        vb numbers[2][HALF], high[2][HALF];
        UNROLLED
        for (int i = 0; i < 2 * HALF; i++)
            numbers[i / HALF][i % HALF] = load_bytes(data + 4 * LANES * (line + i / HALF) + half * HALF_BYTES + 4 * REGISTER * (i % HALF));
        arrange(numbers);
        UNROLLED
        for (int i = 0; i < 2 * HALF; i++) {
            vb both = numbers[i / HALF][i % HALF];
            high[i / HALF][i % HALF] = both >> 4;
            numbers[i / HALF][i % HALF] = bits == 4 ? both & 15 : SIGNED ? both ^ 128 : both;
        }
        add_eight(sum, numbers, inputs);
        if (bits == 4) add_eight(sum, high, inputs + 4 * FOURS);
    }
    end_sums(sum);
    UNROLLED
    for (int k = 0; k < HALF; k++) {
        vf scale = load_half(factors + k * REGISTER), minimum = minima ? load_half(factors + LANES + k * REGISTER) : scale;
        UNROLLED
        for (int r = 0; r < TILE; r++) {
            vf *to = &total[r][half * HALF + k];
            *to = add_scaled(*to, sum[r][k], scale, scales[r], minima, minimum, offsets[r]);
        }
    }
}

static inline __attribute__((always_inline)) void block_of_tile(const Product *p, int bits, bool minima, int block,
                                                                const Rounded *x, int tile, float (*out)[LANES]) {
    size_t groups = (size_t)x->groups, step = LANES * GROUP / 8 * bits + (minima ? 2 : 1) * LANES * 2;
    const uint8_t *data = p->data + (size_t)block * groups * step;
    vf total[TILE][PARTS] = {{{0}}};
    for (size_t at = (size_t)tile * groups, end = at + groups; at < end; at++, data += step) {
        for (size_t ahead = 0; ahead < step; ahead += 64) fetch_weights(data + ahead);
        for (int half = 0; half < 2; half++) add_half_group(data, bits, minima, x, at, half, total);
    }
    for (int r = 0; r < TILE; r++)
        for (int k = 0; k < PARTS; k++) store(out[r] + k * REGISTER, total[r][k]);
}

typedef void BlockOfTile(const Product *p, int block, const Rounded *x, int tile, float (*out)[LANES]);

#define WHOLE(kind, bits, minima)                                                                                      \
    static void kind##_tile(const Product *p, int block, const Rounded *x, int tile, float (*out)[LANES]) {            \
        block_of_tile(p, bits, minima, block, x, tile, out);                                                           \
    }
WHOLE(four, 4, false) WHOLE(minima, 4, true) WHOLE(eight, 8, false)
static BlockOfTile *const TILES[3] = {four_tile, minima_tile, eight_tile};

/* A block of outputs of a whole tile, without bias. */
static void whole_tile(const Product *p, int block, const Rounded *x, int tile, float (*out)[MOST_ROWS][LANES]) {
    TILES[kind_of(p)](p, block, x, tile, out[0]);
}
