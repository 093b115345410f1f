/* Rows of states normalised: rounded for a product, or added to the states. */

#pragma once

#include "workspace.h"

static float mean_square(const float *x, int length) {
    vf sum = {0};
    int i = 0;
    for (; i + LANES <= length; i += LANES) sum = fma16(load(x + i), load(x + i), sum);
    float rest = 0;
    for (; i < length; i++) rest += x[i] * x[i];
    return (sum_of(sum) + rest) / (float)length;
}

/* Without weights where there are none. */
static void norm_row(const float *x, const float *weight, int length, float epsilon, float *to) {
    float factor = 1.0f / sqrtf(mean_square(x, length) + epsilon);
    int i = 0;
    if (weight == NULL) {
        for (; i + LANES <= length; i += LANES) store(to + i, load(x + i) * factor);
        for (; i < length; i++) to[i] = x[i] * factor;
        return;
    }
    for (; i + LANES <= length; i += LANES) store(to + i, load(x + i) * factor * load(weight + i));
    for (; i < length; i++) to[i] = x[i] * factor * weight[i];
}

/* Add what was computed to a row's state, normalised. */
static void add_normed(Pass *p, int row) {
    int length = p->decoder->hidden;
    float *state = p->hidden + (size_t)row * length, *added = p->added + (size_t)row * length;
    norm_row(added, p->norm, length, p->decoder->epsilon, added);
    for (int i = 0; i < length; i++) state[i] += added[i];
}

static void norm_and_round(Pass *p, int row) {
    int length = p->decoder->hidden;
    float normed[length + LANES];
    norm_row(p->hidden + (size_t)row * length, p->norm, length, p->decoder->epsilon, normed);
    round_row(normed, length, &p->x, row);
}

static void norm_rows(void *job, int from, int to, int thread) {
    (void)thread;
    for (int row = from; row < to; row++) norm_and_round(job, row);
}

static void add_rows(void *job, int from, int to, int thread) {
    (void)thread;
    for (int row = from; row < to; row++) add_normed(job, row);
}

enum { FEW_ROWS = 8 }; /* what is done row by row is too little to share out for so many */
