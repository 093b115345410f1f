/* The score that so much weight reaches down to, found without sorting. */

#pragma once

#include "lanes.h"

enum { BUCKETS = 256 };

/* Whole numbers in the order of the floats. */
static uint32_t ordered(float score) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

static float score_of(uint32_t place) {
    uint32_t bits = place >> 31 ? place ^ 1u << 31 : ~place;
    float score;
    memcpy(&score, &bits, sizeof score);
    return score;
}

/* The highest score at which the weights of all that are as high or higher add up to `wanted`, which is above 0; −∞ where
 * they never do. Weights are 0 or more; NULL for 1 each. A byte of the scores is decided at a time. */
static float score_reaching(const float *scores, const float *weights, int count, double wanted) {
    uint32_t found = 0;
    double above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double weight[BUCKETS] = {0};
        for (int i = 0; i < count; i++) {
            uint32_t place = ordered(scores[i]);
            if (shift == 24 || place >> (shift + 8) == found)
                weight[place >> shift & (BUCKETS - 1)] += weights ? (double)weights[i] : 1.0;
        }
        int bucket = BUCKETS - 1, lowest = -1;
        for (; bucket >= 0 && above + weight[bucket] < wanted; bucket--) {
            if (weight[bucket] > 0) lowest = bucket;
            above += weight[bucket];
        }
        if (bucket < 0 && shift == 24) return -INFINITY;
        if (bucket < 0) bucket = lowest; /* together they reached it, added in this order they round to less */
        found = found << 8 | (uint32_t)bucket;
    }
    return score_of(found);
}
