/* Vector operations that C cannot express, for x86: AVX-512, or AVX2 with eight lanes to a register. */

#pragma once

#include <immintrin.h>

#if !defined(__AVX2__) || !defined(__F16C__) || !defined(__FMA__)
#error "written for processors with AVX2, F16C and FMA"
#endif

/* How many queries attend together, how many registers of values and blocks of keys they look at in a step, and for how
 * many rows a product keeps its sums: as many as there are registers for. NIBBLES: numbers are multiplied 4 bits at a time. */
#if REGISTER == 16
#define SET 6
enum { WIDE = 4, BLOCKS = 2, ROWS_AT_ONCE = TILE };
#else
#define SET 4
enum { WIDE = 4, BLOCKS = 1, ROWS_AT_ONCE = TILE / 2 };
#endif
#if REGISTER == 16 && defined(__AVX512VNNI__) || REGISTER == 8 && defined(__AVXVNNI__)
#define WHOLE_DOT
enum { NIBBLES = 0 };
#else
enum { NIBBLES = 1 };
#endif
enum { SIGNED = 0 };
/* How many blocks of outputs are computed together for many rows, and how many rows of the next tile are multiplied with a
 * tile where there are no more: sums and totals of 14 rows are 28 of 32 registers. */
#if REGISTER == 16 && defined(WHOLE_DOT)
#define TOGETHER 3
#define MORE_ROWS 6
#else
#define TOGETHER 1
#define MORE_ROWS 0
#endif

/* Always inlined: a function that only fetches changes nothing, so compilers leave its calls out. */
static inline __attribute__((always_inline)) void fetch(const void *at) { _mm_prefetch((const char *)at, _MM_HINT_T0); }
/* Weights that are multiplied soon. With eight lanes, fetching them into the nearest cache at once held reading up: they come
 * into the second first. */
static inline __attribute__((always_inline)) void fetch_weights(const uint8_t *at) {
#if REGISTER == 16
    fetch(at + AHEAD);
#else
    _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T1);
    fetch(at + AHEAD / 8);
#endif
}
static inline void rest(void) { _mm_pause(); }

static inline float half_value(uint16_t bits) { return _cvtsh_ss(bits); }
static inline uint16_t as_half(float value) { return _cvtss_sh(value, 0); }

static inline vf load_half(const uint16_t *at) {
#if REGISTER == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
#else
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
#endif
}

static inline vf larger(vf a, vf b) {
#if REGISTER == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#endif
}

static inline vf multiply_add(vf a, vf b, vf c) {
#if REGISTER == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
}

#if REGISTER == 16
static inline __m256 upper(const vf *v) { return _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)v[0], 1)); }
static inline __m256 lower(const vf *v) { return _mm512_castps512_ps256((__m512)v[0]); }
#else
static inline __m256 upper(const vf *v) { return (__m256)v[1]; }
static inline __m256 lower(const vf *v) { return (__m256)v[0]; }
#endif

/* Of all parts: LANES lanes. */
static inline float sum_of(const vf *v) {
    __m256 eight = _mm256_add_ps(lower(v), upper(v));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

static inline __m256 max_of_eight(vf v) {
#if REGISTER == 16
    return _mm256_max_ps(lower(&v), upper(&v));
#else
    return (__m256)v;
#endif
}

static inline float max_of(vf v) {
    __m256 eight = max_of_eight(v);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

static inline int sum_of_whole(vi v) {
#if REGISTER == 16
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
#endif
}

/* A bit for every lane that is set throughout. */
static inline unsigned lanes_set(vi which) {
#if REGISTER == 16
    return _mm512_test_epi32_mask((__m512i)which, (__m512i)which);
#else
    return (unsigned)_mm256_movemask_ps((__m256)which);
#endif
}

/* As many bytes as there are lanes, as whole numbers; spelt out, because compilers take the bytes one by one. */
static inline vi wide(const uint8_t *bytes) {
#if REGISTER == 16
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)bytes));
#else
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
#endif
}

/* All parts of LANES numbers as bytes, of which only their own lowest eight bits are kept. */
static inline vn narrow(const vi *whole) {
#if REGISTER == 16
    return (vn)_mm512_cvtepi32_epi8((__m512i)whole[0]);
#else
    __m256i low = (__m256i)(whole[0] & 255), high = (__m256i)(whole[1] & 255);
    __m256i pairs = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    return (vn)_mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
#endif
}

/* Of every two neighbours the first twice, the second twice, and both in the other order. */
#if REGISTER == 16
static inline vf first_twice(vf v) { return (vf)_mm512_moveldup_ps((__m512)v); }
static inline vf second_twice(vf v) { return (vf)_mm512_movehdup_ps((__m512)v); }
static inline vf swapped(vf v) { return (vf)_mm512_permute_ps((__m512)v, 0xb1); }
#else
static inline vf first_twice(vf v) { return (vf)_mm256_moveldup_ps((__m256)v); }
static inline vf second_twice(vf v) { return (vf)_mm256_movehdup_ps((__m256)v); }
static inline vf swapped(vf v) { return (vf)_mm256_permute_ps((__m256)v, 0xb1); }
#endif

/* The same pair in all lanes. Without AVX-512 spelt out, because compilers halve the pair first and then have two to spread. */
static inline vu all_pairs(const uint32_t *at) {
#if REGISTER == 16
    return *at - (vu){0};
#else
    __m256 pairs;
    __asm__("vbroadcastss %1, %0" : "=x"(pairs) : "m"(*at));
    return (vu)pairs;
#endif
}

/* Products of bfloat16, those of the high halves first: as two multiplications that each add and round. */
static inline vf dot2(vf sum, vu a, vu b) {
#ifdef __AVX512BF16__
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum = multiply_add((vf)(a & 0xffff0000), (vf)(b & 0xffff0000), sum);
    return multiply_add((vf)(a << 16), (vf)(b << 16), sum);
#endif
}

/* Sums of four products: lane i gets numbers[4i..4i+3] · x[0..3]. Numbers are unsigned and of so many bits, x is signed. With
 * NIBBLES numbers are of 4 bits, and a lane is two sums of 16 bits, which have room for a group's products. */
static inline vi dot4(vi sum, vb numbers, const int8_t *x, int bits) {
    (void)bits;
#if REGISTER == 16 && defined(WHOLE_DOT)
    /* Spelt out, because compilers broadcast all inputs of a block first and then have no registers left. */
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(numbers), "m"(*(const int32_any *)x));
    return sum;
#elif defined(WHOLE_DOT)
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)numbers, _mm256_set1_epi32(*(const int32_any *)x));
#else
#if REGISTER == 16
    vi products = (vi)_mm512_maddubs_epi16((__m512i)numbers, _mm512_set1_epi32(*(const int32_any *)x));
#else
    vi products = (vi)_mm256_maddubs_epi16((__m256i)numbers, _mm256_set1_epi32(*(const int32_any *)x));
#endif
    /* Spelt out, because compilers put off all additions of a group and keep the products in memory until then. */
    __asm__("vpaddw %1, %0, %0" : "+v"(sum) : "v"(products));
    return sum;
#endif
}

/* Sums of dot4 as whole numbers; with NIBBLES times a factor. */
static inline vi whole_sums(vi sum, int16_t factor) {
#ifdef WHOLE_DOT
    (void)factor;
    return sum;
#elif REGISTER == 16
    return (vi)_mm512_madd_epi16((__m512i)sum, _mm512_set1_epi16(factor));
#else
    return (vi)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(factor));
#endif
}

#if TOGETHER > 1
/* The same four inputs in all lanes, and their products; spelt out likewise. */
static inline vb spread4(const int8_t *x) {
    vb inputs;
    __asm__("vpbroadcastd %1, %0" : "=v"(inputs) : "m"(*(const int32_any *)x));
    return inputs;
}

static inline vi dot4_spread(vi sum, vb numbers, vb inputs) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(numbers), "v"(inputs));
    return sum;
}

/* The high halves of bytes, which are loaded again: registers are short. */
static inline vb high_halves(const uint8_t *at) {
    vb numbers;
    __asm__("vpsrlw $4, %1, %0" : "=v"(numbers) : "m"(*(const vb_any *)at));
    return numbers & 15;
}
#endif

/* The largest lane of each of TILE registers. */
static inline tf max_of_each(const vf *v) {
    __m256 pair[TILE / 2], four[TILE / 4];
    UNROLLED
    for (int i = 0; i < TILE / 2; i++) {
        __m256 a = max_of_eight(v[2 * i]), b = max_of_eight(v[2 * i + 1]);
        pair[i] = _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    }
    UNROLLED
    for (int i = 0; i < TILE / 4; i++) {
        __m256d a = _mm256_castps_pd(pair[2 * i]), b = _mm256_castps_pd(pair[2 * i + 1]);
        four[i] = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    __m256 low = _mm256_permute2f128_ps(four[0], four[1], 0x20), high = _mm256_permute2f128_ps(four[0], four[1], 0x31);
    return (tf)_mm256_max_ps(low, high);
}

/* TILE rows of GROUP signed bytes, four bytes of each row in turn; and what each row adds up to. */
static inline ti interleave(vn rows[TILE][2], int8_t *to) {
    __m256i row[TILE], two[TILE], four[TILE], sum = _mm256_setzero_si256(), ones = _mm256_set1_epi8(1);
    UNROLLED
    for (int r = 0; r < TILE; r++) row[r] = _mm256_set_m128i((__m128i)rows[r][1], (__m128i)rows[r][0]);
    UNROLLED
    for (int i = 0; i < TILE; i += 2) {
        two[i] = _mm256_unpacklo_epi32(row[i], row[i + 1]);
        two[i + 1] = _mm256_unpackhi_epi32(row[i], row[i + 1]);
    }
    UNROLLED
    for (int i = 0; i < TILE; i += 4)
        UNROLLED
        for (int j = 0; j < 2; j++) {
            four[i + 2 * j] = _mm256_unpacklo_epi64(two[i + j], two[i + 2 + j]);
            four[i + 2 * j + 1] = _mm256_unpackhi_epi64(two[i + j], two[i + 2 + j]);
        }
    UNROLLED
    for (int j = 0; j < TILE; j++) {
        __m256i turned = j < 4 ? _mm256_permute2x128_si256(four[j], four[j + 4], 0x20)
                               : _mm256_permute2x128_si256(four[j - 4], four[j], 0x31);
        _mm256_storeu_si256((__m256i *)(to + j * TILE * 4), turned);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, turned));
    }
    return (ti)_mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}
