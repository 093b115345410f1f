/* Queries look at the keys and values of the rows they see. */

#pragma once

#include "lanes.h"
#include "product.h"

/* Keys lie LANES rows together, value by value, so that one step scores that many keys without adding across lanes;
 * values lie row by row. A few queries look at the same keys and values, so that these are widened once for all of them.
 * What a query gets depends on itself and on what it sees: what it does not see counts exactly nothing, wherever that
 * lies, and sums run from key to key in the order of the text. */
typedef struct {
    const float *query[SET];
    const uint8_t *mask[SET];
    float *to[SET];
    float *weights; /* (SET, room) */
    int room;       /* end, rounded up to whole vectors */
    int common;     /* rows that every query sees */
    int end;        /* rows that any of the queries sees, and what lies before them */
} Set;

/* Scores of two blocks of keys, or of one; −∞ for those that a query does not see. */
static inline __attribute__((always_inline)) void score(const Set *s, const uint16_t *keys, int size, int count,
                                                        int first, int blocks, vf *most) {
    vf sum[SET][2];
#pragma GCC unroll 6
    for (int n = 0; n < count; n++) sum[n][0] = sum[n][1] = (vf){0};
    const uint16_t *key = keys + (size_t)first * (size_t)size;
    for (int i = 0; i < size; i++, key += LANES) {
        _mm_prefetch((const char *)key + AHEAD, _MM_HINT_T0);
        vf one = load_half(key), other = blocks == 2 ? load_half(key + (size_t)size * LANES) : one;
#pragma GCC unroll 6
        for (int n = 0; n < count; n++) {
            vf q = all(s->query[n][i]);
            sum[n][0] = fma16(q, one, sum[n][0]);
            if (blocks == 2) sum[n][1] = fma16(q, other, sum[n][1]);
        }
    }
    vf factor = all(1.0f / sqrtf((float)size));
    for (int b = 0, at = first; b < blocks; b++, at += LANES)
        for (int n = 0; n < count; n++) {
            vf scores = sum[n][b] * factor;
            if (at + LANES > s->common) scores = either(seen(s->mask[n] + at, s->end - at), scores, all(-INFINITY));
            most[n] = larger(scores, most[n]);
            store(s->weights + (size_t)n * (size_t)s->room + at, scores);
        }
}

/* Scores become weights; their sums. */
static inline __attribute__((always_inline)) void weigh(const Set *s, int count, const vf *most, float *totals) {
    for (int n = 0; n < count; n++) {
        float *weights = s->weights + (size_t)n * (size_t)s->room;
        vf top = all(max_of(most[n]));
        for (int t = 0; t < s->end; t += LANES) store(weights + t, exp16(load(weights + t) - top));
        totals[n] = 0;
    }
    for (int t = 0; t < s->end; t++)
#pragma GCC unroll 6
        for (int n = 0; n < count; n++) totals[n] += s->weights[(size_t)n * (size_t)s->room + t];
}

static inline __attribute__((always_inline)) void mix(const Set *s, const uint16_t *values, int size, int count, int from,
                                                      int vectors, const float *totals) {
    vf sum[SET][WIDE];
#pragma GCC unroll 6
    for (int n = 0; n < count; n++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[n][v] = (vf){0};
    const uint16_t *value = values + from;
    for (int t = 0; t < s->end; t++, value += size) {
        vf wide[WIDE];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            if (v % 2 == 0) _mm_prefetch((const char *)(value + v * LANES) + AHEAD, _MM_HINT_T0);
            wide[v] = load_half(value + v * LANES);
        }
#pragma GCC unroll 6
        for (int n = 0; n < count; n++) {
            vf weight = all(s->weights[(size_t)n * (size_t)s->room + t]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[n][v] = fma16(weight, wide[v], sum[n][v]);
        }
    }
    for (int n = 0; n < count; n++)
        for (int v = 0; v < vectors; v++) store(s->to[n] + from + v * LANES, sum[n][v] * (1.0f / totals[n]));
}

static void mix_rest(const Set *s, const uint16_t *values, int size, int count, int from, const float *totals) {
    for (; from < size; from++)
        for (int n = 0; n < count; n++) {
            float sum = 0;
            for (int t = 0; t < s->end; t++)
                sum += s->weights[(size_t)n * (size_t)s->room + t] * _cvtsh_ss(values[(size_t)t * (size_t)size + from]);
            s->to[n][from] = sum * (1.0f / totals[n]);
        }
}

static inline __attribute__((always_inline)) void attend_some(const Set *s, const uint16_t *keys, const uint16_t *values,
                                                              int size, int count) {
    vf most[SET];
    for (int n = 0; n < count; n++) most[n] = all(-INFINITY);
    int at = 0, from = 0;
    for (; BLOCKS == 2 && at + LANES < s->end; at += 2 * LANES) score(s, keys, size, count, at, 2, most);
    for (; at < s->end; at += LANES) score(s, keys, size, count, at, 1, most);
    float totals[SET];
    weigh(s, count, most, totals);
    for (; from + WIDE * LANES <= size; from += WIDE * LANES) mix(s, values, size, count, from, WIDE, totals);
    for (; from + LANES <= size; from += LANES) mix(s, values, size, count, from, 1, totals);
    mix_rest(s, values, size, count, from, totals);
}

#define SIZES(count)                                                                                                   \
    static void attend_##count(const Set *s, const uint16_t *keys, const uint16_t *values, int size) {                 \
        if (size == 64) attend_some(s, keys, values, 64, count);                                                       \
        else if (size == 128) attend_some(s, keys, values, 128, count);                                                \
        else attend_some(s, keys, values, size, count);                                                                \
    }
SIZES(1) SIZES(2) SIZES(3)
#if SET == 6
SIZES(4) SIZES(5) SIZES(6)
#endif

static void attend(const Set *s, int count, const uint16_t *keys, const uint16_t *values, int size) {
    switch (count) {
#if SET == 6
    case 6: attend_6(s, keys, values, size); break;
    case 5: attend_5(s, keys, values, size); break;
    case 4: attend_4(s, keys, values, size); break;
#endif
    case 3: attend_3(s, keys, values, size); break;
    case 2: attend_2(s, keys, values, size); break;
    default: attend_1(s, keys, values, size);
    }
}
