/* Vectors: a register of numbers, of sixteen, eight or four lanes. */

#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Blocks and sums have LANES lanes on every processor, in so many PARTS as registers are needed for them. Sums that stay
 * in registers are arrays of parts: vectors wider than a register would be kept in memory. */
#if defined(__AVX512F__) && defined(__AVX512BW__)
#define REGISTER 16
#elif defined(__x86_64__)
#define REGISTER 8
#else
#define REGISTER 4
#endif

/* Before a loop over registers: unless it is unrolled whole, compilers keep what it goes over in memory. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

enum { LANES = 16, PARTS = LANES / REGISTER, GROUP = 32, TILE = 8, AHEAD = 8192 };

typedef float vf __attribute__((vector_size(4 * REGISTER)));
typedef int32_t vi __attribute__((vector_size(4 * REGISTER)));
typedef uint32_t vu __attribute__((vector_size(4 * REGISTER)));
typedef uint8_t vb __attribute__((vector_size(4 * REGISTER)));
typedef uint64_t vl __attribute__((vector_size(4 * REGISTER)));
typedef uint16_t vs __attribute__((vector_size(2 * REGISTER)));
typedef float vf_any __attribute__((vector_size(4 * REGISTER), aligned(4), may_alias));
typedef int32_t vi_any __attribute__((vector_size(4 * REGISTER), aligned(4), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(4 * REGISTER), aligned(4), may_alias));
typedef uint8_t vb_any __attribute__((vector_size(4 * REGISTER), aligned(1), may_alias));
typedef uint32_t vh_any __attribute__((vector_size(2 * REGISTER), aligned(4), may_alias));
typedef int32_t int32_any __attribute__((aligned(1), may_alias));

/* Sixteen bytes. */
typedef uint8_t vn __attribute__((vector_size(16)));
typedef uint8_t vn_any __attribute__((vector_size(16), aligned(1), may_alias));

/* A number for each row of a tile. */
typedef float tf __attribute__((vector_size(4 * TILE)));
typedef int32_t ti __attribute__((vector_size(4 * TILE)));
typedef float tf_any __attribute__((vector_size(4 * TILE), aligned(4), may_alias));
typedef int32_t ti_any __attribute__((vector_size(4 * TILE), aligned(4), may_alias));

static const int32_t COUNT[LANES] __attribute__((aligned(64))) = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static inline vf load(const float *at) { return *(const vf_any *)at; }
static inline void store(float *at, vf value) { *(vf_any *)at = value; }
static inline vi load_whole(const int32_t *at) { return *(const vi_any *)at; }
static inline vu load_pairs(const uint32_t *at) { return *(const vu_any *)at; }
static inline vf all(float value) { return value - (vf){0}; }
static inline vf either(vi which, vf yes, vf no) { return (vf)((which & (vi)yes) | (~which & (vi)no)); }
static inline vf size_of(vf value) { return (vf)((vi)value & 0x7fffffff); }

#if defined(__x86_64__)
#include "lanes_x86.h"
#elif defined(__aarch64__)
#include "lanes_arm.h"
#else
#error "written for x86 and 64-bit ARM"
#endif

/* How many rows at most are multiplied at once. */
enum { MOST_ROWS = TILE + MORE_ROWS };

/* As many lanes as are valid, which may be none; the others are zeros. */
static inline vf load_lanes(const float *at, int valid) {
    if (valid >= REGISTER) return load(at);
    vf value = {0};
    if (valid > 0) memcpy(&value, at, (size_t)valid * sizeof(float));
    return value;
}

static inline void store_lanes(float *at, vf value, int valid) {
    if (valid >= REGISTER) store(at, value);
    else if (valid > 0) memcpy(at, &value, (size_t)valid * sizeof(float));
}

static inline vi first_lanes(int count) { return load_whole(COUNT) < count - (vi){0}; }

/* Which of twice as many bytes as a register has lanes are set, those at even places and those at odd ones; those past the
 * first `count` are not. */
static inline void seen(const uint8_t *bytes, int count, vi *even, vi *odd) {
    uint8_t few[2 * REGISTER] = {0};
    if (count < 2 * REGISTER) bytes = count > 0 ? memcpy(few, bytes, (size_t)count) : few;
    vs pairs;
    memcpy(&pairs, bytes, sizeof pairs);
    vi both = __builtin_convertvector(pairs, vi);
    *even = (both & 255) != 0;
    *odd = both >> 8 != 0;
}

/* Rounded to bfloat16, which is the upper half of a float32; what the lower half holds is of no account. */
static inline vu brain(vf value) { return (vu)value + 0x8000; }

/* Pairs of bfloat16. */
static inline vu pairs(vf high, vf low) { return (brain(high) & 0xffff0000) | brain(low) >> 16; }

/* A register of values as pairs of bfloat16, the first of two in the low half. */
static inline void store_pairs(uint32_t *to, vf value) {
    vl both = (vl)brain(value);
    *(vh_any *)to = __builtin_convertvector((both >> 32 & 0xffff0000) | (both >> 16 & 0xffff), vh_any);
}

/* e^x with an error of two units in the last place, for x ≤ 0; below −87 it is 0. */
static inline vf exponential(vf x) {
    vf low = all(-87.0f);
    vi gone = x < low;
    x = larger(x, low);
    vf shifted = x * 1.44269504f + 12582912.0f; /* adding 1.5 · 2^23 rounds to a whole number */
    vf whole = shifted - 12582912.0f;
    vf rest = multiply_add(whole, all(-0.693359375f), x);
    rest = multiply_add(whole, all(2.12194440e-4f), rest);
    vf y = all(1.9875691500e-4f);
    y = multiply_add(y, rest, all(1.3981999507e-3f));
    y = multiply_add(y, rest, all(8.3334519073e-3f));
    y = multiply_add(y, rest, all(4.1665795894e-2f));
    y = multiply_add(y, rest, all(1.6666665459e-1f));
    y = multiply_add(y, rest, all(5.0000001201e-1f));
    y = multiply_add(y, rest * rest, rest + 1.0f);
    vi power = ((vi)shifted - (vi)all(12582912.0f) + 127) << 23;
    return (vf)(~gone & (vi)(y * (vf)power));
}

/* 2^x with an error of 2^−13, for x ≤ 0; below −126 it is 0. */
static inline vf rough_power_of_two(vf x) {
    vf low = all(-126.0f);
    vi gone = x < low;
    x = larger(x, low); /* what is added below must fit where it is gone, too */
    vf shifted = x + 12582912.0f;
    vf rest = x - (shifted - 12582912.0f);
    vf y = multiply_add(all(5.5502813e-2f), rest, all(2.4022651e-1f));
    y = multiply_add(y, rest, all(6.9314718e-1f));
    y = multiply_add(y, rest, all(1.0f));
    return (vf)(~gone & ((vi)y + ((vi)shifted << 23)));
}

static inline vf sigmoid(vf x) {
    vf e = exponential(-size_of(x));
    vf positive = 1.0f / (1.0f + e);
    return either(x < 0.0f, e * positive, positive);
}

static inline vf silu(vf x) { return x * sigmoid(x); }

/* x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))); (1 + tanh(y))/2 is the sigmoid of 2y. */
static inline vf gelu(vf x) {
    vf cubic = multiply_add(x * x * 0.044715f, x, x);
    return x * sigmoid(cubic * 1.5957691216f);
}
