/* Vector operations that C cannot express, for x86: AVX-512, or AVX2 with eight lanes to a register. */

#pragma once

#include <immintrin.h>

#if !defined(__AVX2__) || !defined(__F16C__) || !defined(__FMA__)
#error "written for processors with AVX2, F16C and FMA"
#endif

/* How many queries attend together, how many vectors of values and blocks of keys they look at in a step: as many as
 * there are registers for. */
#ifdef __AVX512F__
#define SET 6
enum { WIDE = 4, BLOCKS = 2 };
#else
#define SET 3
enum { WIDE = 2, BLOCKS = 1 };
#endif

/* Halves of a vector, for processors whose registers hold eight lanes. */
typedef union { vf f; vi i; vb b; __m256 f8[2]; __m256i i8[2]; } Split;

/* Always inlined: a function that only fetches changes nothing, so compilers leave its calls out. */
static inline __attribute__((always_inline)) void fetch(const void *at) { _mm_prefetch((const char *)at, _MM_HINT_T0); }
static inline void rest(void) { _mm_pause(); }

static inline float half_value(uint16_t bits) { return _cvtsh_ss(bits); }
static inline uint16_t as_half(float value) { return _cvtss_sh(value, 0); }

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

static inline vf larger(vf a, vf b) {
#ifdef __AVX512F__
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    Split x = {.f = a}, y = {.f = b};
    for (int h = 0; h < 2; h++) x.f8[h] = _mm256_max_ps(x.f8[h], y.f8[h]);
    return x.f;
#endif
}

static inline vf fma16(vf a, vf b, vf c) {
#ifdef __AVX512F__
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    Split x = {.f = a}, y = {.f = b}, z = {.f = c};
    for (int h = 0; h < 2; h++) z.f8[h] = _mm256_fmadd_ps(x.f8[h], y.f8[h], z.f8[h]);
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

/* A bit for every lane that is set throughout. */
static inline unsigned lanes_set(vi which) {
#ifdef __AVX512F__
    return _mm512_test_epi32_mask((__m512i)which, (__m512i)which);
#else
    Split s = {.i = which};
    return (unsigned)(_mm256_movemask_ps(s.f8[0]) | _mm256_movemask_ps(s.f8[1]) << 8);
#endif
}

/* Sixteen bytes as whole numbers; spelt out, because compilers take the bytes one by one. */
static inline vi wide(vn bytes) {
#ifdef __AVX512F__
    return (vi)_mm512_cvtepu8_epi32((__m128i)bytes);
#else
    __m128i sixteen = (__m128i)bytes;
    return (Split){.i8 = {_mm256_cvtepu8_epi32(sixteen), _mm256_cvtepu8_epi32(_mm_srli_si128(sixteen, 8))}}.i;
#endif
}

/* Sixteen numbers as bytes, of which only their own lowest eight bits are kept. */
static inline vn narrow(vi whole) {
#ifdef __AVX512F__
    return (vn)_mm512_cvtepi32_epi8((__m512i)whole);
#else
    Split s = {.i = whole & 255};
    __m128i low = _mm_packs_epi32(_mm256_castsi256_si128(s.i8[0]), _mm256_extracti128_si256(s.i8[0], 1));
    __m128i high = _mm_packs_epi32(_mm256_castsi256_si128(s.i8[1]), _mm256_extracti128_si256(s.i8[1], 1));
    return (vn)_mm_packus_epi16(low, high);
#endif
}

/* Products of bfloat16, those of the high halves first: as two multiplications that each add and round. */
static inline vf dot2(vf sum, vu a, vu b) {
#ifdef __AVX512BF16__
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum = fma16((vf)(a & 0xffff0000), (vf)(b & 0xffff0000), sum);
    return fma16((vf)(a << 16), (vf)(b << 16), sum);
#endif
}

/* Sixteen sums of four products: lane i gets numbers[4i..4i+3] · x[0..3]. Numbers are unsigned and of so many bits, x is
 * signed. */
static inline vi dot4(vi sum, vb numbers, const int8_t *x, int bits) {
    (void)bits;
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

/* Eight lanes and zeros. Not put together in memory: what was stored in two parts cannot be loaded as one for a while. */
static inline vi lower_lanes(__m256i lanes) {
#ifdef __AVX512F__
    return (vi)_mm512_zextsi256_si512(lanes);
#else
    return (Split){.i8 = {lanes, _mm256_setzero_si256()}}.i;
#endif
}

/* The largest lane of each of TILE vectors, in the first lanes. */
static inline vf max_of_each(const vf *v) {
    __m256 pair[TILE / 2], four[TILE / 4];
#pragma GCC unroll 4
    for (int i = 0; i < TILE / 2; i++) {
        __m256 a = _mm256_max_ps(lower(v[2 * i]), upper(v[2 * i])), b = _mm256_max_ps(lower(v[2 * i + 1]), upper(v[2 * i + 1]));
        pair[i] = _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    }
#pragma GCC unroll 2
    for (int i = 0; i < TILE / 4; i++) {
        __m256d a = _mm256_castps_pd(pair[2 * i]), b = _mm256_castps_pd(pair[2 * i + 1]);
        four[i] = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    __m256 low = _mm256_permute2f128_ps(four[0], four[1], 0x20), high = _mm256_permute2f128_ps(four[0], four[1], 0x31);
    return (vf)lower_lanes((__m256i)_mm256_max_ps(low, high));
}

/* TILE rows of GROUP signed bytes, four bytes of each row in turn; and what each row adds up to, in the first lanes. */
static inline vi interleave(vn rows[TILE][2], int8_t *to) {
    __m256i row[TILE], two[TILE], four[TILE], sum = _mm256_setzero_si256(), ones = _mm256_set1_epi8(1);
#pragma GCC unroll 8
    for (int r = 0; r < TILE; r++) row[r] = _mm256_set_m128i((__m128i)rows[r][1], (__m128i)rows[r][0]);
#pragma GCC unroll 4
    for (int i = 0; i < TILE; i += 2) {
        two[i] = _mm256_unpacklo_epi32(row[i], row[i + 1]);
        two[i + 1] = _mm256_unpackhi_epi32(row[i], row[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < TILE; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            four[i + 2 * j] = _mm256_unpacklo_epi64(two[i + j], two[i + 2 + j]);
            four[i + 2 * j + 1] = _mm256_unpackhi_epi64(two[i + j], two[i + 2 + j]);
        }
#pragma GCC unroll 8
    for (int j = 0; j < TILE; j++) {
        __m256i turned = j < 4 ? _mm256_permute2x128_si256(four[j], four[j + 4], 0x20)
                               : _mm256_permute2x128_si256(four[j - 4], four[j], 0x31);
        _mm256_storeu_si256((__m256i *)(to + j * TILE * 4), turned);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, turned));
    }
    return lower_lanes(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}
