/* Vector operations that C cannot express, for 64-bit ARM: NEON with four lanes to a register and products of 8-bit numbers. */

#pragma once

#include <arm_neon.h>

#if !defined(__ARM_FEATURE_DOTPROD)
#error "written for processors with NEON and its dot products"
#endif

/* As for x86 without AVX-512: as much as registers hold. */
#define SET 3
enum { WIDE = 2, BLOCKS = 1 };

/* Quarters of a vector. */
typedef union {
    vf f; vi i; vu u; vb b;
    float32x4_t f4[4]; int32x4_t i4[4]; uint32x4_t u4[4]; uint8x16_t b4[4];
} Split;

/* Always inlined: a function that only fetches changes nothing, so compilers leave its calls out. */
static inline __attribute__((always_inline)) void fetch(const void *at) { __builtin_prefetch(at, 0, 2); }
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

static inline vf load_half(const uint16_t *at) {
    Split s;
    for (int q = 0; q < 4; q++) s.f4[q] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at + 4 * q)));
    return s.f;
}

/* The second where they cannot be compared, as on x86. */
static inline vf larger(vf a, vf b) { return either(a > b, a, b); }

static inline vf fma16(vf a, vf b, vf c) {
    Split x = {.f = a}, y = {.f = b}, z = {.f = c};
    for (int q = 0; q < 4; q++) z.f4[q] = vfmaq_f32(z.f4[q], x.f4[q], y.f4[q]);
    return z.f;
}

/* In the order of x86: halves, their halves, and so on. */
static inline float sum_of(vf v) {
    Split s = {.f = v};
    float32x4_t four = vaddq_f32(vaddq_f32(s.f4[0], s.f4[2]), vaddq_f32(s.f4[1], s.f4[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static inline float max_of(vf v) {
    Split s = {.f = v};
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(s.f4[0], s.f4[2]), vmaxq_f32(s.f4[1], s.f4[3])));
}

static inline int sum_of_whole(vi v) {
    Split s = {.i = v};
    return vaddvq_s32(vaddq_s32(vaddq_s32(s.i4[0], s.i4[1]), vaddq_s32(s.i4[2], s.i4[3])));
}

/* A bit for every lane that is set throughout. */
static inline unsigned lanes_set(vi which) {
    Split s = {.i = which};
    const uint32x4_t places = {1, 2, 4, 8};
    unsigned set = 0;
    for (int q = 0; q < 4; q++) set |= vaddvq_u32(vandq_u32(s.u4[q], places)) << 4 * q;
    return set;
}

/* Sixteen bytes as whole numbers. */
static inline vi wide(vn bytes) {
    uint16x8_t low = vmovl_u8(vget_low_u8((uint8x16_t)bytes)), high = vmovl_u8(vget_high_u8((uint8x16_t)bytes));
    Split s;
    s.u4[0] = vmovl_u16(vget_low_u16(low));
    s.u4[1] = vmovl_u16(vget_high_u16(low));
    s.u4[2] = vmovl_u16(vget_low_u16(high));
    s.u4[3] = vmovl_u16(vget_high_u16(high));
    return s.i;
}

/* Sixteen numbers as bytes, of which only their own lowest eight bits are kept. */
static inline vn narrow(vi whole) {
    Split s = {.i = whole};
    uint16x8_t low = vcombine_u16(vmovn_u32(s.u4[0]), vmovn_u32(s.u4[1]));
    uint16x8_t high = vcombine_u16(vmovn_u32(s.u4[2]), vmovn_u32(s.u4[3]));
    return (vn)vcombine_u8(vmovn_u16(low), vmovn_u16(high));
}

/* Products of bfloat16, those of the high halves first: as two multiplications that each add and round. (Instructions for
 * bfloat16 round otherwise.) */
static inline vf dot2(vf sum, vu a, vu b) {
    sum = fma16((vf)(a & 0xffff0000), (vf)(b & 0xffff0000), sum);
    return fma16((vf)(a << 16), (vf)(b << 16), sum);
}

/* Sixteen sums of four products: lane i gets numbers[4i..4i+3] · x[0..3]. Numbers are unsigned and of so many bits, x is
 * signed. */
static inline vi dot4(vi sum, vb numbers, const int8_t *x, int bits) {
    int32_t four;
    memcpy(&four, x, 4);
    int8x16_t all_x = vreinterpretq_s8_s32(vdupq_n_s32(four));
    Split s = {.i = sum}, n = {.b = numbers};
    for (int q = 0; q < 4; q++) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
        (void)bits;
        s.i4[q] = vusdotq_s32(s.i4[q], n.b4[q], all_x);
#else
        /* Numbers of 8 bits as signed ones, which are 128 less. */
        int8x16_t low = vreinterpretq_s8_u8(bits == 8 ? veorq_u8(n.b4[q], vdupq_n_u8(128)) : n.b4[q]);
        s.i4[q] = vdotq_s32(s.i4[q], low, all_x);
        for (int twice = 0; twice < 2 && bits == 8; twice++) s.i4[q] = vdotq_s32(s.i4[q], vdupq_n_s8(64), all_x);
#endif
    }
    return s.i;
}

/* The largest lane of each of TILE vectors, in the first lanes. */
static inline vf max_of_each(const vf *v) {
    vf largest = {0};
    for (int i = 0; i < TILE; i++) largest[i] = max_of(v[i]);
    return largest;
}

/* TILE rows of GROUP signed bytes, four bytes of each row in turn; and what each row adds up to, in the first lanes. */
static inline vi interleave(vn rows[TILE][2], int8_t *to) {
    vi sums = {0};
    for (int r = 0; r < TILE; r++) {
        for (int j = 0; j < GROUP / 4; j++) memcpy(to + (j * TILE + r) * 4, (const int8_t *)rows[r] + 4 * j, 4);
        sums[r] = vaddlvq_s8((int8x16_t)rows[r][0]) + vaddlvq_s8((int8x16_t)rows[r][1]);
    }
    return sums;
}
