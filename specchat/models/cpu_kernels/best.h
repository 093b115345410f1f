/* The highest scores of a row, found while they are written. */

#pragma once

#include "lanes.h"

enum { BEST = 64 };

/* Some scores and whose they are, the highest first; of equals the one with the lower number. */
typedef struct {
    int32_t named, kept; /* how many, and with those that fill the last register */
    float before;        /* so that every score has one before it */
    float score[BEST];
    int32_t token[BEST];
} Best;

static void begin(Best *best, int named) {
    best->named = named;
    best->kept = (named + REGISTER - 1) / REGISTER * REGISTER;
    for (int i = 0; i < best->kept; i++) {
        best->score[i] = -INFINITY;
        best->token[i] = INT32_MAX;
    }
}

static void insert(Best *best, float score, int32_t token) {
    vi before = {0}; /* a true comparison adds −1 to its lane */
    for (int i = 0; i < best->kept; i += REGISTER) {
        vf scores = load(best->score + i);
        vi tokens = load_whole(best->token + i);
        before += (scores > score) | ((scores == score) & (tokens < token));
    }
    int at = -sum_of_whole(before);
    if (at == best->kept) return;
    for (int i = best->kept - REGISTER; i >= 0 && i + REGISTER > at; i -= REGISTER) {
        vi place = load_whole(COUNT) + i;
        vf scores = either(place < at, load(best->score + i), load(best->score + i - 1));
        vf tokens = either(place < at, load((float *)best->token + i), load((float *)best->token + i - 1));
        store(best->score + i, scores);
        store((float *)best->token + i, tokens);
    }
    best->score[at] = score;
    best->token[at] = token;
}

static inline void consider(Best *best, vf scores, int first, int valid) {
    unsigned which = lanes_set(scores >= all(best->score[best->named - 1]));
    for (; which; which &= which - 1) {
        int lane = __builtin_ctz(which);
        if (lane < valid) insert(best, scores[lane], first + lane);
    }
}

static void join(Best *best, const Best *other) {
    for (int i = 0; i < best->named && other->score[i] >= best->score[best->named - 1]; i++)
        insert(best, other->score[i], other->token[i]);
}
