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

enum { LANES = 16, GROUP = 32, TILE = 8 };

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
typedef float vf_any __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint8_t vb __attribute__((vector_size(64)));
typedef uint8_t vb_any __attribute__((vector_size(64), aligned(1), may_alias));
typedef int32_t int32_any __attribute__((aligned(1), may_alias));
typedef uint32_t vu __attribute__((vector_size(64)));

static inline vf load(const float *at) { return *(const vf_any *)at; }
static inline void store(float *at, vf value) { *(vf_any *)at = value; }
static inline vf all(float value) { return value - (vf){0}; }
static inline vf either(vi which, vf yes, vf no) { return (vf)((which & (vi)yes) | (~which & (vi)no)); }
static inline vf larger(vf a, vf b) { return either(a > b, a, b); }

/* Halves of a vector, for processors whose registers hold eight lanes. */
typedef union { vf f; vi i; vb b; __m256 f8[2]; __m256i i8[2]; } Split;

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

static inline vi first_lanes(int count) {
    return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} < count - (vi){0};
}

/* Which of sixteen bytes are set; those past the first `count` are not. */
static inline vi seen(const uint8_t *bytes, int count) {
    uint8_t few[LANES] = {0};
    if (count < LANES) bytes = memcpy(few, bytes, (size_t)count);
    __m128i sixteen = _mm_loadu_si128((const __m128i *)bytes);
    Split s = {.i8 = {_mm256_cvtepi8_epi32(sixteen), _mm256_cvtepi8_epi32(_mm_srli_si128(sixteen, 8))}};
    return s.i != 0;
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
