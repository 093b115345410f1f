/* Eight numbers at a time, without instructions of any one processor: every processor computes the same bits. */

#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8 };

typedef float vf __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(32), aligned(4), may_alias));

static inline vf all(float value) { return value - (vf){0}; }
static inline vf load(const float *at) { return *(const vf *)at; }
static inline void store(float *at, vf value) { *(vf *)at = value; }
static inline vf larger(vf a, vf b) {
    vi which = a > b;
    return (vf)((which & (vi)a) | (~which & (vi)b));
}

static inline float max_of(vf v) {
    float most = v[0];
    for (int i = 1; i < LANES; i++) most = v[i] > most ? v[i] : most;
    return most;
}

static inline float sum_of(vf v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

static inline bool any(vi which) {
    int32_t found = 0;
    for (int i = 0; i < LANES; i++) found |= which[i];
    return found != 0;
}

/* e^x with an error of two units in the last place, for x ≤ 0; below −87 it is 0. */
static inline vf exponential(vf x) {
    vi there = x >= all(-87.0f);
    x = larger(x, all(-87.0f));
    vf shifted = x * 1.44269504f + 12582912.0f; /* adding 1.5 · 2^23 rounds to a whole number */
    vf whole = shifted - 12582912.0f;
    vf rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vf y = all(1.9875691500e-4f);
    y = y * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * (rest * rest) + (rest + 1.0f);
    vi power = ((vi)shifted - (vi)all(12582912.0f) + 127) << 23;
    return (vf)(there & (vi)(y * (vf)power));
}
