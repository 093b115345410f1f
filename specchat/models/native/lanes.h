/* Sixteen numbers at a time, on registers of sixteen lanes or of eight. */

#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if !defined(__AVX2__) || !defined(__F16C__) || !defined(__FMA__)
#error "written for processors with AVX2, F16C and FMA"
#endif

enum { LANES = 16, GROUP = 32, TILE = 8, AHEAD = 8192 };

/* How many queries attend together, how many vectors of values and blocks of keys they look at in a step: as many as
 * there are registers for. */
#ifdef __AVX512F__
#define SET 6
enum { WIDE = 4, BLOCKS = 2 };
#else
#define SET 3
enum { WIDE = 2, BLOCKS = 1 };
#endif

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
static const vi COUNT = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

typedef float vf_any __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t vi_any __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint8_t vb __attribute__((vector_size(64)));
typedef uint8_t vb_any __attribute__((vector_size(64), aligned(1), may_alias));
typedef int32_t int32_any __attribute__((aligned(1), may_alias));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint64_t vl __attribute__((vector_size(64)));
typedef uint32_t vu8 __attribute__((vector_size(32)));
typedef uint32_t vu8_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(64), aligned(4), may_alias));

static inline vf load(const float *at) { return *(const vf_any *)at; }
static inline void store(float *at, vf value) { *(vf_any *)at = value; }
static inline vf all(float value) { return value - (vf){0}; }
static inline vf either(vi which, vf yes, vf no) { return (vf)((which & (vi)yes) | (~which & (vi)no)); }
static inline void fetch_near(const void *at) { _mm_prefetch((const char *)at, _MM_HINT_T0); }
static inline void fetch(const void *at) { _mm_prefetch((const char *)at, _MM_HINT_T1); }

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

/* Halves of a vector, for processors whose registers hold eight lanes. */
typedef union { vf f; vi i; vb b; __m256 f8[2]; __m256i i8[2]; } Split;

static inline vf larger(vf a, vf b) {
#ifdef __AVX512F__
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    Split x = {.f = a}, y = {.f = b};
    for (int h = 0; h < 2; h++) x.f8[h] = _mm256_max_ps(x.f8[h], y.f8[h]);
    return x.f;
#endif
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

static inline vf load_half(const uint16_t *at) {
#ifdef __AVX512F__
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
#else
    Split s;
    s.f8[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
    s.f8[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at + 8)));
    return s.f;
#endif
}

static inline void store_half(uint16_t *at, vf value) {
    Split s = {.f = value};
    _mm_storeu_si128((__m128i *)at, _mm256_cvtps_ph(s.f8[0], 0));
    _mm_storeu_si128((__m128i *)(at + 8), _mm256_cvtps_ph(s.f8[1], 0));
}

static inline vf fma16(vf a, vf b, vf c) {
#ifdef __AVX512F__
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    Split x = {.f = a}, y = {.f = b}, z = {.f = c};
    z.f8[0] = _mm256_fmadd_ps(x.f8[0], y.f8[0], z.f8[0]);
    z.f8[1] = _mm256_fmadd_ps(x.f8[1], y.f8[1], z.f8[1]);
    return z.f;
#endif
}

static inline __m256 upper(vf v) { return ((Split){.f = v}).f8[1]; }
static inline __m256 lower(vf v) { return ((Split){.f = v}).f8[0]; }

static inline float sum_of(vf v) {
    __m256 eight = _mm256_add_ps(lower(v), upper(v));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

static inline float max_of(vf v) {
    __m256 eight = _mm256_max_ps(lower(v), upper(v));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

static inline int sum_of_whole(vi v) {
    Split s = {.i = v};
    __m256i eight = _mm256_add_epi32(s.i8[0], s.i8[1]);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* The nearest whole numbers. */
static inline vi whole(vf value) {
#ifdef __AVX512F__
    return (vi)_mm512_cvtps_epi32((__m512)value);
#else
    Split s = {.f = value};
    for (int h = 0; h < 2; h++) s.i8[h] = _mm256_cvtps_epi32(s.f8[h]);
    return s.i;
#endif
}

/* A bit for every lane that is set throughout. */
static inline unsigned lanes_set(vi which) {
#ifdef __AVX512F__
    return _mm512_movepi32_mask((__m512i)which);
#else
    Split s = {.i = which};
    return (unsigned)(_mm256_movemask_ps(s.f8[0]) | _mm256_movemask_ps(s.f8[1]) << 8);
#endif
}

static inline vi first_lanes(int count) {
    return COUNT < count - (vi){0};
}

/* Which of 32 bytes are set, those at even places and those at odd ones; those past the first `count` are not. */
static inline void seen(const uint8_t *bytes, int count, vi *even, vi *odd) {
    uint8_t few[2 * LANES] = {0};
    if (count < 2 * LANES) bytes = memcpy(few, bytes, (size_t)count);
    uint16_t pairs[LANES];
    memcpy(pairs, bytes, sizeof pairs);
    vi both;
    for (int i = 0; i < LANES; i++) both[i] = pairs[i];
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

/* Products of bfloat16, those of the high halves first: as two multiplications that each add and round. */
static inline vf dot2(vf sum, vu a, vu b) {
#ifdef __AVX512BF16__
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum = fma16((vf)(a & 0xffff0000), (vf)(b & 0xffff0000), sum);
    return fma16((vf)(a << 16), (vf)(b << 16), sum);
#endif
}

/* Sixteen sums of four products: lane i gets numbers[4i..4i+3] · x[0..3]. Numbers are unsigned, x is signed. */
static inline vi dot4(vi sum, vb numbers, const int8_t *x) {
#if defined(__AVX512VNNI__)
    /* Spelt out, because compilers broadcast all inputs of a block first and then have no registers left. */
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(numbers), "m"(*(const int32_any *)x));
    return sum;
#else
    int32_t four;
    memcpy(&four, x, 4);
#if defined(__AVXVNNI__)
    Split s = {.i = sum}, n = {.b = numbers};
    for (int h = 0; h < 2; h++) s.i8[h] = _mm256_dpbusd_avx_epi32(s.i8[h], n.i8[h], _mm256_set1_epi32(four));
    return s.i;
#else
    /* Even and odd bytes apart: pairs of products of 8 bits each would not fit into the 16 that maddubs adds them in. */
    Split s = {.i = sum}, n = {.b = numbers};
    __m256i both = _mm256_set1_epi32(four);
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(both, 8), 8), odd = _mm256_srai_epi16(both, 8);
    for (int h = 0; h < 2; h++) {
        __m256i low = _mm256_madd_epi16(_mm256_and_si256(n.i8[h], _mm256_set1_epi16(255)), even);
        __m256i high = _mm256_madd_epi16(_mm256_srli_epi16(n.i8[h], 8), odd);
        s.i8[h] = _mm256_add_epi32(s.i8[h], _mm256_add_epi32(low, high));
    }
    return s.i;
#endif
#endif
}

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

static inline vf silu16(vf x) {
    vf size = (vf)((vi)x & 0x7fffffff);
    vf e = exp16(-size);
    vf positive = 1.0f / (1.0f + e);
    return x * either(x < 0.0f, e * positive, positive);
}
