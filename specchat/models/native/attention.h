/* Queries look at the keys and values of the rows they see. */

#pragma once

#include "lanes.h"
#include "product.h"

/* Four queries look at the same keys and values, so that these are widened once for all of them. What a query gets
 * depends on itself and on what it sees: what it does not see counts exactly nothing, wherever that lies, and sums run
 * from key to key in the order of the text. */
typedef struct {
    const float *query[SET];
    const uint8_t *mask[SET];
    float *to[SET];
    float *weights; /* (end, SET), rounded up to whole vectors */
} Set;

/* Keys and values come from memory too. */
static inline void fetch_ahead(const uint16_t *at, int length) {
    for (int i = 0; i < length; i += 32) _mm_prefetch((const char *)(at + i) + AHEAD, _MM_HINT_T0);
}

static inline __attribute__((always_inline)) __m128 four_scores(const Set *s, const uint16_t *key, int size) {
    vf sum[SET] = {{0}, {0}, {0}, {0}};
    int whole = size / LANES * LANES;
    fetch_ahead(key, size);
#pragma GCC unroll 8
    for (int i = 0; i < whole; i += LANES) {
        vf k = load_half(key + i);
#pragma GCC unroll 4
        for (int n = 0; n < SET; n++) sum[n] = fma16(load(s->query[n] + i), k, sum[n]);
    }
    __m256 eight[SET];
#pragma GCC unroll 4
    for (int n = 0; n < SET; n++) eight[n] = _mm256_add_ps(lower(sum[n]), upper(sum[n]));
    __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(eight[0], eight[1]), _mm256_hadd_ps(eight[2], eight[3]));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    if (whole < size) {
        float rest[SET] = {0};
        for (int i = whole; i < size; i++)
            for (int n = 0; n < SET; n++) rest[n] += s->query[n][i] * _cvtsh_ss(key[i]);
        four = _mm_add_ps(four, _mm_loadu_ps(rest));
    }
    return four;
}

/* Scores of all keys; −∞ for those that a query does not see. The first `common` are seen by everybody. */
static inline __attribute__((always_inline)) __m128 score(const Set *s, const uint16_t *keys, int size, int common,
                                                          int end) {
    __m128 factor = _mm_set1_ps(1.0f / sqrtf((float)size)), most = _mm_set1_ps(-INFINITY);
    for (int t = 0; t < common; t++) {
        __m128 four = _mm_mul_ps(four_scores(s, keys + (size_t)t * (size_t)size, size), factor);
        _mm_storeu_ps(s->weights + (size_t)t * SET, four);
        most = _mm_max_ps(most, four);
    }
    for (int t = common; t < end; t++) {
        __m128 four = _mm_mul_ps(four_scores(s, keys + (size_t)t * (size_t)size, size), factor);
        float *at = s->weights + (size_t)t * SET;
        _mm_storeu_ps(at, four);
        for (int n = 0; n < SET; n++)
            if (!s->mask[n][t]) at[n] = -INFINITY;
        most = _mm_max_ps(most, _mm_loadu_ps(at));
    }
    for (int t = end; t % (LANES / SET); t++) _mm_storeu_ps(s->weights + (size_t)t * SET, _mm_set1_ps(-INFINITY));
    return most;
}

static void exponentials(const Set *s, __m128 most, int end) {
    float top[LANES] __attribute__((aligned(64)));
    for (int i = 0; i < LANES; i += SET) _mm_store_ps(top + i, most);
    vf tops = load(top);
    for (int i = 0; i < end * SET; i += LANES) store(s->weights + i, exp16(load(s->weights + i) - tops));
}

static inline __attribute__((always_inline)) void mix(const Set *s, const uint16_t *values, int size, int end, int from,
                                                      int vectors) {
    vf sum[SET][4];
    __m128 total = _mm_setzero_ps();
#pragma GCC unroll 4
    for (int n = 0; n < SET; n++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[n][v] = (vf){0};
    for (int t = 0; t < end; t++) {
        const uint16_t *value = values + (size_t)t * (size_t)size + from;
        const float *weights = s->weights + (size_t)t * SET;
        total = _mm_add_ps(total, _mm_loadu_ps(weights));
        fetch_ahead(value, vectors * LANES);
        vf wide[4];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) wide[v] = load_half(value + v * LANES);
#pragma GCC unroll 4
        for (int n = 0; n < SET; n++) {
            vf weight = all(weights[n]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[n][v] = fma16(weight, wide[v], sum[n][v]);
        }
    }
    float totals[SET];
    _mm_storeu_ps(totals, total);
#pragma GCC unroll 4
    for (int n = 0; n < SET; n++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(s->to[n] + from + v * LANES, sum[n][v] * (1.0f / totals[n]));
}

static void mix_rest(const Set *s, const uint16_t *values, int size, int end, int from) {
    for (; from < size; from++)
        for (int n = 0; n < SET; n++) {
            float sum = 0, total = 0;
            for (int t = 0; t < end; t++) {
                float weight = s->weights[(size_t)t * SET + (size_t)n];
                sum += weight * _cvtsh_ss(values[(size_t)t * (size_t)size + (size_t)from]);
                total += weight;
            }
            s->to[n][from] = sum * (1.0f / total);
        }
}

static void attend(const Set *s, const uint16_t *keys, const uint16_t *values, int size, int common, int end) {
    __m128 most = size == 64    ? score(s, keys, 64, common, end)
                  : size == 128 ? score(s, keys, 128, common, end)
                                : score(s, keys, size, common, end);
    exponentials(s, most, end);
    int from = 0;
    for (; from + 4 * LANES <= size; from += 4 * LANES) mix(s, values, size, end, from, 4);
    for (; from + LANES <= size; from += LANES) mix(s, values, size, end, from, 1);
    mix_rest(s, values, size, end, from);
}
