/* Attention: scores of queries with keys, weights by softmax, and weighted sums of values. */

#pragma once

#include "lanes.h"

enum { KEYS = 2 * LANES, SPAN = 4 * KEYS, AT_ONCE = 4 * SET };
enum { SUMMED = 512 }; /* so many weights add up to no more than 32 bits hold */

/* Queries, keys, values and weights are bfloat16, and two products are added at a time: two values of a key, or the
 * values of two rows. KEYS keys lie together, pair of values by pair of values, those of even rows first, so that one step
 * scores LANES keys without adding across lanes. Values lie in pairs of rows, the even row in the high halves.
 *
 * What a query gets depends on itself and on what it sees: what it does not see counts exactly nothing, wherever that
 * lies, sums of values run from row to row in the order of the text, and sums of weights are whole numbers. Queries that
 * share a head of keys are read together, SET of them in registers, a stretch of rows in the nearest cache. */
typedef struct {
    const uint32_t *query; /* pairs of values, scaled: scores are powers of two */
    const uint8_t *mask;
    float *to;
} Query;

typedef struct {
    const Query *queries;
    int count, size; /* of queries, of a head */
    int common;      /* rows that every query sees */
    int end;         /* rows that any of the queries sees, and what lies before them */
    int room;        /* end, rounded up to whole blocks of keys */
    const uint32_t *keys, *values;
    float *weights; /* (count, room): scores, then weights in pairs of rows */
    float (*most)[LANES]; /* (count) */
    const char *soon; /* what is read next, fetched meanwhile: at every step lines of its quarters, */
    size_t quarter;   /* so many bytes apart; */
    size_t step;      /* so many bytes on from one step to the next */
} Looking;

/* Of four lines those that are fetched with one part. */
static inline __attribute__((always_inline)) void fetch_four(const char *at, size_t apart, int part) {
    for (size_t i = (size_t)part; i < 4; i += PARTS) fetch(at + i * apart);
}

/* Scores of one part of the lanes of `blocks` blocks of keys; −∞ for those that a query does not see. */
static inline __attribute__((always_inline)) void score_part(const Looking *l, int from, int count, int first, int blocks,
                                                             int size, int part) {
    vf sum[SET][2 * BLOCKS];
    const uint32_t *query[SET];
    UNROLLED
    for (int n = 0; n < count; n++) {
        query[n] = l->queries[from + n].query;
        UNROLLED
        for (int b = 0; b < 2 * blocks; b++) sum[n][b] = (vf){0};
    }
    const uint32_t *key = l->keys + (size_t)first * (size_t)(size / 2) + part * REGISTER;
    size_t apart = (size_t)KEYS * (size_t)(size / 2), step = l->step, quarter = l->quarter;
    const char *soon = l->soon + (size_t)(first % SPAN / (BLOCKS * KEYS)) * (size_t)(size / 2) * step;
    for (int i = 0; i < size / 2; i++, key += KEYS, soon += step) {
        fetch_four(soon, quarter, part);
        vu some[2 * BLOCKS];
        UNROLLED
        for (int b = 0; b < 2 * blocks; b++) some[b] = load_pairs(key + (size_t)(b / 2) * apart + b % 2 * LANES);
        UNROLLED
        for (int n = 0; n < count; n++) {
            vu q = all_pairs(query[n] + i);
            UNROLLED
            for (int b = 0; b < 2 * blocks; b++) sum[n][b] = dot2(sum[n][b], some[b], q);
        }
    }
    UNROLLED
    for (int b = 0; b < blocks; b++)
        UNROLLED
        for (int n = 0; n < count; n++) {
            int at = first + b * KEYS, lane = part * REGISTER;
            vf even = sum[n][2 * b], odd = sum[n][2 * b + 1];
            if (at + KEYS > l->common) {
                vi seen_even, seen_odd;
                seen(l->queries[from + n].mask + at + 2 * lane, l->end - at - 2 * lane, &seen_even, &seen_odd);
                even = either(seen_even, even, all(-INFINITY));
                odd = either(seen_odd, odd, all(-INFINITY));
            }
            float *most = l->most[from + n] + lane;
            store(most, larger(larger(even, odd), load(most)));
            float *scores = l->weights + (size_t)(from + n) * (size_t)l->room + at + lane;
            store(scores, even);
            store(scores + LANES, odd);
        }
}

static inline __attribute__((always_inline)) void score_blocks(const Looking *l, int from, int count, int first,
                                                               int blocks, int size) {
    for (int part = 0; part < PARTS; part++) score_part(l, from, count, first, blocks, size, part);
}

/* Scores become weights, in pairs of rows; what their sum is. */
static float weigh(const Looking *l, int which) {
    float *scores = l->weights + (size_t)which * (size_t)l->room;
    vf highest = load(l->most[which]);
    for (int i = REGISTER; i < LANES; i += REGISTER) highest = larger(highest, load(l->most[which] + i));
    vf top = all(max_of(highest));
    /* Between 2 and 4 the last bit of a number is 2^−22: adding makes whole numbers of weights, whose sums are exact. */
    vf three = all(3.0f);
    uint64_t total = 0;
    for (int from = 0; from < l->room; from += SUMMED) {
        int end = from + SUMMED < l->room ? from + SUMMED : l->room;
        vu sum = -(vu)three * (uint32_t)(2 * PARTS * ((end - from) / KEYS)); /* less what three will have added */
        for (int at = from; at < end; at += KEYS)
            for (int lane = 0; lane < LANES; lane += REGISTER) {
                vf even = rough_power_of_two(load(scores + at + lane) - top);
                vf odd = rough_power_of_two(load(scores + at + LANES + lane) - top);
                sum += (vu)(even + three) + (vu)(odd + three);
                store(scores + at / 2 + lane, (vf)pairs(even, odd));
            }
        total += (uint32_t)sum_of_whole((vi)sum);
    }
    return (float)total / 4194304.0f;
}

/* Add up weighted values of some pairs of rows, of `vectors` registers of a head. */
static inline __attribute__((always_inline)) void mix_pairs(const Looking *l, int from, int count, int pair, int end,
                                                            int column, int vectors) {
    vf sum[SET][WIDE];
    const uint32_t *weights[SET];
    UNROLLED
    for (int n = 0; n < count; n++) {
        weights[n] = (const uint32_t *)(l->weights + (size_t)(from + n) * (size_t)l->room);
        UNROLLED
        for (int v = 0; v < vectors; v++) sum[n][v] = load(l->queries[from + n].to + column + v * REGISTER);
    }
    const uint32_t *value = l->values + (size_t)pair * (size_t)l->size + column;
    size_t step = l->step, quarter = l->quarter;
    const char *soon = l->soon + (size_t)(column / (WIDE * REGISTER)) * (SPAN / 2) * step;
    for (int t = pair; t < end; t++, value += l->size, soon += step) {
        UNROLLED
        for (int part = 0; part < PARTS; part++) fetch_four(soon, quarter, part);
        vu some[WIDE];
        UNROLLED
        for (int v = 0; v < vectors; v++) some[v] = load_pairs(value + v * REGISTER);
        UNROLLED
        for (int n = 0; n < count; n++) {
            vu weight = all_pairs(weights[n] + t);
            UNROLLED
            for (int v = 0; v < vectors; v++) sum[n][v] = dot2(sum[n][v], some[v], weight);
        }
    }
    UNROLLED
    for (int n = 0; n < count; n++)
        UNROLLED
        for (int v = 0; v < vectors; v++) store(l->queries[from + n].to + column + v * REGISTER, sum[n][v]);
}

/* The same for the columns that fill no vector. */
static void mix_rest(const Looking *l, int which, int pair, int end, int column) {
    const uint32_t *weights = (const uint32_t *)(l->weights + (size_t)which * (size_t)l->room);
    float *to = l->queries[which].to;
    for (; column < l->size; column++)
        for (int t = pair; t < end; t++)
            to[column] = dot2(all(to[column]), all_pairs(l->values + (size_t)t * (size_t)l->size + column),
                              all_pairs(weights + t))[0];
}

static inline __attribute__((always_inline)) void score_set(const Looking *l, int from, int count, int first, int end) {
    int size = l->size, at = first;
    for (; BLOCKS == 2 && at + KEYS < end; at += 2 * KEYS) score_blocks(l, from, count, at, 2, size);
    for (; at < end; at += KEYS) score_blocks(l, from, count, at, 1, size);
}

static inline __attribute__((always_inline)) void mix_set(const Looking *l, int from, int count, int first, int end) {
    int column = 0, pair = first / 2, last = end / 2;
    for (; column + WIDE * REGISTER <= l->size; column += WIDE * REGISTER) mix_pairs(l, from, count, pair, last, column, WIDE);
    for (; column + REGISTER <= l->size; column += REGISTER) mix_pairs(l, from, count, pair, last, column, 1);
    for (int n = 0; n < count; n++) mix_rest(l, from + n, pair, last, column);
}

#define COUNTS(count)                                                                                                  \
    static void score_##count(const Looking *l, int from, int first, int end) { score_set(l, from, count, first, end); } \
    static void mix_##count(const Looking *l, int from, int first, int end) { mix_set(l, from, count, first, end); }
typedef void Look(const Looking *l, int from, int first, int end);
COUNTS(1) COUNTS(2) COUNTS(3) COUNTS(4)
#if SET == 6
COUNTS(5) COUNTS(6)
#define EACH(what) {what##_1, what##_2, what##_3, what##_4, what##_5, what##_6}
#else
#define EACH(what) {what##_1, what##_2, what##_3, what##_4}
#endif
static Look *const SCORE[SET] = EACH(score), *const MIX[SET] = EACH(mix);

/* For all queries one stretch of rows after another; the next one, or at the end the first of what follows, is fetched
 * meanwhile, a part of it with every set. */
static void look(Looking *l, Look *const *how, const uint32_t *rows, const uint32_t *after) {
    size_t row_bytes = (size_t)l->size * sizeof(uint16_t), sets = (size_t)(l->count + SET - 1) / SET;
    l->quarter = SPAN * row_bytes / sets / 4;
    l->step = l->quarter / (SPAN / 2 * (size_t)((l->size + WIDE * REGISTER - 1) / (WIDE * REGISTER)));
    for (int first = 0; first < l->room; first += SPAN) {
        int end = first + SPAN < l->room ? first + SPAN : l->room;
        const char *next = end < l->room ? (const char *)rows + (size_t)end * row_bytes : (const char *)after;
        for (int from = 0; from < l->count; from += SET) {
            int count = l->count - from < SET ? l->count - from : SET;
            l->soon = next + 4 * l->quarter * (size_t)(from / SET);
            how[count - 1](l, from, first, end);
        }
    }
}

static void attend(Looking *l) {
    for (int n = 0; n < l->count; n++) {
        for (int i = 0; i < LANES; i++) l->most[n][i] = -INFINITY;
        memset(l->queries[n].to, 0, (size_t)l->size * sizeof(float));
    }
    look(l, SCORE, l->keys, l->values);
    float totals[AT_ONCE];
    for (int n = 0; n < l->count; n++) totals[n] = weigh(l, n);
    look(l, MIX, l->values, l->values);
    for (int n = 0; n < l->count; n++)
        for (int i = 0; i < l->size; i++) l->queries[n].to[i] *= 1.0f / totals[n];
}
