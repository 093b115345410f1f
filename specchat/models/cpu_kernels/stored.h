/* Rows of weights as files hold them, a group of 32 at a time in float32.
 *
 * All but Q6_K multiply so few bits that their products are exact in float32. So nothing depends on whether a compiler
 * fuses a product with the sum that follows; what gguf's own code computes comes out to the bit. */

#pragma once

#include "lanes.h"

/* GGUF's own numbers for the kinds that can be read here. */
enum Kind {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30,
    KINDS_END
};

static inline vn bytes16(const uint8_t *at) { return *(const vn_any *)at; }

static inline vf floats(vi whole) { return __builtin_convertvector(whole, vf); }

static inline uint16_t half_bits(const uint8_t *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static inline float half_at(const uint8_t *at) { return half_value(half_bits(at)); }

/* Whole numbers from the i-th of a group on: of 4 bits, first the low halves of 16 bytes and then the high ones; */
static inline vi four_bits(const uint8_t *at, int i) { return wide(at + i % LANES) >> i / LANES * 4 & 15; }

/* of one bit each, the first in the lowest. */
static inline vi one_bit(const uint8_t *at, int i) { return (*(const int32_any *)at - (vi){0}) >> (load_whole(COUNT) + i) & 1; }

/* Scale and minimum of one of the eight groups of a block of Q4_K or Q5_K: two factors in float16, then eight scales and
 * eight minima of 6 bits in 12 bytes. */
static inline void factors_k(const uint8_t *block, int which, float *scale, float *minimum) {
    const uint8_t *low = block + 4, *middle = block + 8, *high = block + 12;
    int part = which % 4;
    int s = which < 4 ? low[part] & 63 : (high[part] & 15) | low[part] >> 6 << 4;
    int m = which < 4 ? middle[part] & 63 : high[part] >> 4 | middle[part] >> 6 << 4;
    *scale = half_at(block) * (float)s;
    *minimum = -half_at(block + 2) * (float)m;
}

/* Write group `group` of a row: GROUP numbers, of which `count` are there (fewer only where a kind has no blocks). */
typedef void Unpack(const uint8_t *row, int group, int count, float *to);

static void unpack_f32(const uint8_t *row, int group, int count, float *to) {
    memcpy(to, row + (size_t)group * GROUP * sizeof(float), (size_t)count * sizeof(float));
}

static void unpack_f16(const uint8_t *row, int group, int count, float *to) {
    uint16_t some[GROUP] = {0};
    memcpy(some, row + (size_t)group * sizeof some, (size_t)count * sizeof *some);
    for (int i = 0; i < GROUP; i += REGISTER) store(to + i, load_half(some + i));
}

static void unpack_bf16(const uint8_t *row, int group, int count, float *to) {
    uint16_t some[GROUP] = {0};
    memcpy(some, row + (size_t)group * sizeof some, (size_t)count * sizeof *some);
    for (int i = 0; i < GROUP; i++) {
        uint32_t bits = (uint32_t)some[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

static void unpack_q4_0(const uint8_t *row, int group, int count, float *to) {
    (void)count;
    const uint8_t *block = row + group * 18;
    for (int i = 0; i < GROUP; i += REGISTER) store(to + i, floats(four_bits(block + 2, i) - 8) * half_at(block));
}

static void unpack_q4_1(const uint8_t *row, int group, int count, float *to) {
    (void)count;
    const uint8_t *block = row + group * 20;
    for (int i = 0; i < GROUP; i += REGISTER)
        store(to + i, floats(four_bits(block + 4, i)) * half_at(block) + half_at(block + 2));
}

static void unpack_q5_0(const uint8_t *row, int group, int count, float *to) {
    (void)count;
    const uint8_t *block = row + group * 22;
    for (int i = 0; i < GROUP; i += REGISTER) {
        vi whole = (four_bits(block + 6, i) | one_bit(block + 2, i) << 4) - 16;
        store(to + i, floats(whole) * half_at(block));
    }
}

static void unpack_q5_1(const uint8_t *row, int group, int count, float *to) {
    (void)count;
    const uint8_t *block = row + group * 24;
    for (int i = 0; i < GROUP; i += REGISTER) {
        vi whole = four_bits(block + 8, i) | one_bit(block + 4, i) << 4;
        store(to + i, floats(whole) * half_at(block) + half_at(block + 2));
    }
}

static void unpack_q8_0(const uint8_t *row, int group, int count, float *to) {
    (void)count;
    const uint8_t *block = row + group * 34;
    for (int i = 0; i < GROUP; i += REGISTER) {
        vi whole = (wide(block + 2 + i) ^ 128) - 128; /* the bytes have a sign */
        store(to + i, floats(whole) * half_at(block));
    }
}

static void unpack_q4_k(const uint8_t *row, int group, int count, float *to) {
    (void)count;
    const uint8_t *block = row + group / 8 * 144, *numbers = block + 16 + group % 8 / 2 * 32;
    float scale, minimum;
    factors_k(block, group % 8, &scale, &minimum);
    for (int i = 0; i < GROUP; i += REGISTER)
        store(to + i, floats(wide(numbers + i) >> group % 2 * 4 & 15) * scale + minimum);
}

static void unpack_q5_k(const uint8_t *row, int group, int count, float *to) {
    (void)count;
    const uint8_t *block = row + group / 8 * 176, *high = block + 16, *low = block + 48 + group % 8 / 2 * 32;
    float scale, minimum;
    factors_k(block, group % 8, &scale, &minimum);
    for (int i = 0; i < GROUP; i += REGISTER) {
        vi whole = wide(low + i) >> group % 2 * 4 & 15;
        whole |= (wide(high + i) >> group % 8 & 1) << 4;
        store(to + i, floats(whole) * scale + minimum);
    }
}

static void unpack_q6_k(const uint8_t *row, int group, int count, float *to) {
    (void)count;
    const uint8_t *block = row + group / 8 * 210;
    int hundred = group % 8 / 4, quarter = group % 4; /* of 256 numbers: which 128, which 32 of those */
    const uint8_t *low = block + hundred * 64 + quarter % 2 * 32, *high = block + 128 + hundred * 32;
    const int8_t *scales = (const int8_t *)block + 192 + group % 8 * 2;
    for (int i = 0; i < GROUP; i += REGISTER) {
        vi whole = wide(low + i) >> quarter / 2 * 4 & 15;
        whole |= (wide(high + i) >> quarter * 2 & 3) << 4;
        float scale = half_at(block + 208) * (float)scales[i / LANES];
        store(to + i, floats(whole - 32) * scale);
    }
}

static Unpack *const UNPACK[KINDS_END] = {
    [F32] = unpack_f32,   [F16] = unpack_f16,   [BF16] = unpack_bf16, [Q4_0] = unpack_q4_0,
    [Q4_1] = unpack_q4_1, [Q5_0] = unpack_q5_0, [Q5_1] = unpack_q5_1, [Q8_0] = unpack_q8_0,
    [Q4_K] = unpack_q4_k, [Q5_K] = unpack_q5_k, [Q6_K] = unpack_q6_k,
};

/* How many numbers of a row lie together, in how many bytes. */
typedef struct { int32_t numbers, bytes; } StoredBlock;

static const StoredBlock BLOCK[KINDS_END] = {
    [F32] = {1, 4},   [F16] = {1, 2},   [BF16] = {1, 2},    [Q4_0] = {32, 18},  [Q4_1] = {32, 20},  [Q5_0] = {32, 22},
    [Q5_1] = {32, 24}, [Q8_0] = {32, 34}, [Q4_K] = {256, 144}, [Q5_K] = {256, 176}, [Q6_K] = {256, 210},
};

/* Some rows of a matrix as its file holds it. Output i is row order[i]. */
typedef struct {
    const uint8_t *data;
    const int32_t *order; /* (rows), or NULL for the file's own order */
    int64_t row_bytes;
    int32_t rows, length, kind, there; /* rows of the matrix that lie at `data` */
} Stored;

/* Rows as numbers, (rows, length); an Outcome. */
int unpack_rows(const Stored *from, float *to);
