/* Vector operations that C cannot express, for 64-bit ARM: NEON with four lanes to a register and products of 8-bit numbers. */

#pragma once

#include <arm_neon.h>

#if !defined(__ARM_FEATURE_DOTPROD)
#error "written for processors with NEON and its dot products"
#endif

/* As for x86 without AVX-512: as much as registers hold. */
#define SET 4
#define TOGETHER 1
#define MORE_ROWS 0
enum { WIDE = 8, BLOCKS = 1, ROWS_AT_ONCE = TILE / 4, NIBBLES = 0 };
#if defined(__ARM_FEATURE_MATMUL_INT8)
enum { SIGNED = 0 };
#else
enum { SIGNED = 1 }; /* there are products of signed numbers only */
#endif

/* Always inlined: a function that only fetches changes nothing, so compilers leave its calls out. */
static inline __attribute__((always_inline)) void fetch(const void *at) { __builtin_prefetch(at, 0, 2); }
static inline __attribute__((always_inline)) void fetch_weights(const uint8_t *at) { fetch(at + AHEAD); }
static inline void rest(void) { __asm__ volatile("yield"); }

static inline float half_value(uint16_t bits) {
    __fp16 half;
    memcpy(&half, &bits, sizeof half);
    return half;
}

static inline uint16_t as_half(float value) {
    __fp16 half = (__fp16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

static inline vf load_half(const uint16_t *at) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at))); }

/* The second where they cannot be compared, as on x86. */
static inline vf larger(vf a, vf b) { return either(a > b, a, b); }

static inline vf multiply_add(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }

/* Of all parts, LANES lanes, in the order of x86: halves, their halves, and so on. */
static inline float sum_of(const vf *v) {
    float32x4_t four = (float32x4_t)((v[0] + v[2]) + (v[1] + v[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static inline float max_of(vf v) { return vmaxvq_f32((float32x4_t)v); }
static inline int sum_of_whole(vi v) { return vaddvq_s32((int32x4_t)v); }

/* A bit for every lane that is set throughout. */
static inline unsigned lanes_set(vi which) {
    const uint32x4_t places = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32((uint32x4_t)which, places));
}

/* As many bytes as there are lanes, as whole numbers. */
static inline vi wide(const uint8_t *bytes) {
    uint32_t four;
    memcpy(&four, bytes, sizeof four);
    return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}

/* All parts of LANES numbers as bytes, of which only their own lowest eight bits are kept. */
static inline vn narrow(const vi *whole) {
    uint16x8_t low = vcombine_u16(vmovn_u32((uint32x4_t)whole[0]), vmovn_u32((uint32x4_t)whole[1]));
    uint16x8_t high = vcombine_u16(vmovn_u32((uint32x4_t)whole[2]), vmovn_u32((uint32x4_t)whole[3]));
    return (vn)vcombine_u8(vmovn_u16(low), vmovn_u16(high));
}

/* Of every two neighbours the first twice, the second twice, and both in the other order. */
static inline vf first_twice(vf v) { return (vf)vtrn1q_f32((float32x4_t)v, (float32x4_t)v); }
static inline vf second_twice(vf v) { return (vf)vtrn2q_f32((float32x4_t)v, (float32x4_t)v); }
static inline vf swapped(vf v) { return (vf)vrev64q_f32((float32x4_t)v); }

/* The same pair in all lanes. */
static inline vu all_pairs(const uint32_t *at) { return (vu)vld1q_dup_u32(at); }

/* Products of bfloat16, those of the high halves first: as two multiplications that each add and round. (Instructions for
 * bfloat16 round otherwise.) */
static inline vf dot2(vf sum, vu a, vu b) {
    sum = multiply_add((vf)(a & 0xffff0000), (vf)(b & 0xffff0000), sum);
    return multiply_add((vf)(a << 16), (vf)(b << 16), sum);
}

/* Sums of four products: lane i gets numbers[4i..4i+3] · x[0..3]. Numbers are unsigned and of so many bits, x is signed.
 * Where products are SIGNED, numbers of 8 bits count 128 less. */
static inline vi dot4(vi sum, vb numbers, const int8_t *x, int bits) {
    int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(*(const int32_any *)x));
#if defined(__ARM_FEATURE_MATMUL_INT8)
    (void)bits;
    return (vi)vusdotq_s32((int32x4_t)sum, (uint8x16_t)numbers, four);
#else
    return (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)(bits == 8 ? numbers ^ 128 : numbers), four);
#endif
}

/* Sums of dot4 as whole numbers, which they are here. */
static inline vi whole_sums(vi sum, int16_t factor) {
    (void)factor;
    return sum;
}

/* The largest lane of each of TILE registers. */
static inline tf max_of_each(const vf *v) {
    tf largest = {0};
    for (int i = 0; i < TILE; i++) largest[i] = max_of(v[i]);
    return largest;
}

/* TILE rows of GROUP signed bytes, four bytes of each row in turn; and what each row adds up to. */
static inline ti interleave(vn rows[TILE][2], int8_t *to) {
    ti sums = {0};
    for (int r = 0; r < TILE; r++) {
        for (int j = 0; j < GROUP / 4; j++) memcpy(to + (j * TILE + r) * 4, (const int8_t *)rows[r] + 4 * j, 4);
        sums[r] = vaddlvq_s8((int8x16_t)rows[r][0]) + vaddlvq_s8((int8x16_t)rows[r][1]);
    }
    return sums;
}
