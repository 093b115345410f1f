/* The highest scores of a row, found while they are written. */

#pragma once

#include "lanes.h"

enum { BEST = 64 };

/* Scores and whose they are, the highest first; of equals the one with the lower number. */
typedef struct {
    float score[BEST];
    int32_t token[BEST];
} Best;

static void begin(Best *best) {
    for (int i = 0; i < BEST; i++) {
        best->score[i] = -INFINITY;
        best->token[i] = INT32_MAX;
    }
}

static void insert(Best *best, float score, int32_t token) {
    int at = BEST;
    while (at > 0 && (score > best->score[at - 1] || (score == best->score[at - 1] && token < best->token[at - 1]))) at--;
    for (int i = BEST - 1; i > at; i--) {
        best->score[i] = best->score[i - 1];
        best->token[i] = best->token[i - 1];
    }
    if (at < BEST) {
        best->score[at] = score;
        best->token[at] = token;
    }
}

static inline void consider(Best *best, vf scores, int first, int valid) {
    Split high = {.i = scores >= all(best->score[BEST - 1])};
    int which = _mm256_movemask_ps(high.f8[0]) | _mm256_movemask_ps(high.f8[1]) << 8;
    for (; which; which &= which - 1) {
        int lane = __builtin_ctz((unsigned)which);
        if (lane < valid) insert(best, scores[lane], first + lane);
    }
}

static void join(Best *best, const Best *other) {
    for (int i = 0; i < BEST && other->score[i] > -INFINITY; i++) insert(best, other->score[i], other->token[i]);
}
