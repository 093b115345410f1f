/* The Gumbel noise of tokens at one position, as core/noise.py computes it from the position's key. */

#pragma once

#include <math.h>
#include <stdint.h>

static inline uint64_t noise_mix(uint64_t key, uint64_t part) {
    uint64_t z = key + part * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* The key of a position, from its stream's. */
static inline uint64_t position_key(uint64_t stream_key, uint64_t position) { return noise_mix(stream_key, position + 1); }

static inline uint64_t noise_bits(uint64_t key, uint64_t token) { return noise_mix(key, token) >> 12; }

static inline double gumbel(uint64_t key, int token) {
    double uniform = ((double)noise_bits(key, (uint64_t)token) + 0.5) * 0x1p-52;
    return -log(-log(uniform));
}

/* Fewer bits than this give noise below a threshold: the noise grows with them. It is rounded when it is computed, so a
 * little more is let through. */
static inline uint64_t least_bits(double threshold) {
    double least = exp(-exp(-threshold)) * (1.0 - 1e-12) * 0x1p52 - 1.0;
    return least > 0 ? (uint64_t)least : 0;
}
