/* Vectors of sixteen numbers, on registers of sixteen, eight or four lanes. */

#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16, GROUP = 32, TILE = 8, AHEAD = 8192 };

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
static const vi COUNT = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

typedef float vf_any __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t vi_any __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint8_t vb __attribute__((vector_size(64)));
typedef uint8_t vb_any __attribute__((vector_size(64), aligned(1), may_alias));
typedef int32_t int32_any __attribute__((aligned(1), may_alias));
typedef uint8_t vn __attribute__((vector_size(16)));
typedef uint8_t vn_any __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t vs __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint64_t vl __attribute__((vector_size(64)));
typedef uint32_t vu8 __attribute__((vector_size(32)));
typedef uint32_t vu8_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(64), aligned(4), may_alias));


static inline vf load(const float *at) { return *(const vf_any *)at; }
static inline void store(float *at, vf value) { *(vf_any *)at = value; }
static inline vf all(float value) { return value - (vf){0}; }
static inline vf either(vi which, vf yes, vf no) { return (vf)((which & (vi)yes) | (~which & (vi)no)); }

#if defined(__x86_64__)
#include "lanes_x86.h"
#elif defined(__aarch64__)
#include "lanes_arm.h"
#else
#error "written for x86 and 64-bit ARM"
#endif

static inline vf load_lanes(const float *at, int valid) {
    if (valid >= LANES) return load(at);
    vf value = {0};
    memcpy(&value, at, (size_t)valid * sizeof(float));
    return value;
}

static inline void store_lanes(float *at, vf value, int valid) {
    if (valid >= LANES) store(at, value);
    else memcpy(at, &value, (size_t)valid * sizeof(float));
}

/* Of every two neighbours the first twice, the second twice, and both in the other order. */
#ifdef __clang__
#define shuffled(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define shuffled(v, ...) __builtin_shuffle(v, (vi){__VA_ARGS__})
#endif
static inline vf first_twice(vf v) { return shuffled(v, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14); }
static inline vf second_twice(vf v) { return shuffled(v, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15); }
static inline vf swapped(vf v) { return shuffled(v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14); }


static inline vi first_lanes(int count) { return COUNT < count - (vi){0}; }

/* Which of 32 bytes are set, those at even places and those at odd ones; those past the first `count` are not. */
static inline void seen(const uint8_t *bytes, int count, vi *even, vi *odd) {
    uint8_t few[2 * LANES] = {0};
    if (count < 2 * LANES) bytes = memcpy(few, bytes, (size_t)count);
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

/* Sixteen values as eight pairs of bfloat16, the first of two in the low half. */
static inline void store_pairs(uint32_t *to, vf value) {
    vl both = (vl)brain(value);
    *(vu8_any *)to = __builtin_convertvector((both >> 32 & 0xffff0000) | (both >> 16 & 0xffff), vu8);
}

static inline uint16_t brain_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x8000) >> 16);
}

static inline vu load_pairs(const uint32_t *at) { return *(const vu_any *)at; }


/* e^x with an error of two units in the last place, for x ≤ 0; below −87 it is 0. */
static inline vf exp16(vf x) {
    vf low = all(-87.0f);
    vi gone = x < low;
    x = larger(x, low);
    vf shifted = x * 1.44269504f + 12582912.0f; /* adding 1.5 · 2^23 rounds to a whole number */
    vf whole = shifted - 12582912.0f;
    vf rest = fma16(whole, all(-0.693359375f), x);
    rest = fma16(whole, all(2.12194440e-4f), rest);
    vf y = all(1.9875691500e-4f);
    y = fma16(y, rest, all(1.3981999507e-3f));
    y = fma16(y, rest, all(8.3334519073e-3f));
    y = fma16(y, rest, all(4.1665795894e-2f));
    y = fma16(y, rest, all(1.6666665459e-1f));
    y = fma16(y, rest, all(5.0000001201e-1f));
    y = fma16(y, rest * rest, rest + 1.0f);
    vi power = ((vi)shifted - (vi)all(12582912.0f) + 127) << 23;
    return (vf)(~gone & (vi)(y * (vf)power));
}

/* 2^x with an error of 2^−13, for x ≤ 0; below −126 it is 0. */
static inline vf rough_power_of_two(vf x) {
    vf low = all(-126.0f);
    vi gone = x < low;
    x = larger(x, low);
    vf shifted = x + 12582912.0f;
    vf rest = x - (shifted - 12582912.0f);
    vf y = fma16(all(5.5502813e-2f), rest, all(2.4022651e-1f));
    y = fma16(y, rest, all(6.9314718e-1f));
    y = fma16(y, rest, all(1.0f));
    return (vf)(~gone & ((vi)y + ((vi)shifted << 23)));
}

static inline vf sigmoid16(vf x) {
    vf size = (vf)((vi)x & 0x7fffffff);
    vf e = exp16(-size);
    vf positive = 1.0f / (1.0f + e);
    return either(x < 0.0f, e * positive, positive);
}

static inline vf silu16(vf x) { return x * sigmoid16(x); }

/* x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))); (1 + tanh(y))/2 is the sigmoid of 2y. */
static inline vf gelu16(vf x) {
    vf cubic = fma16(x * x * 0.044715f, x, x);
    return x * sigmoid16(cubic * 1.5957691216f);
}
