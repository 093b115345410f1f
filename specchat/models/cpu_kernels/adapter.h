/* Low-rank additions to the products of a layer, for some rows of a pass. */

#pragma once

#include "lanes.h"
#include "product.h"

/* out += up (down x), with the x that the product itself gets: rounded. Rank 0 adds nothing. */
typedef struct {
    int32_t rank, inputs, outputs;
    const float *down; /* (rank, inputs) */
    const float *up;   /* (outputs, rank) */
} LowRank;

enum { MOST_RANK = 1024, ADAPTED = 7, FIRST_QKV = 0, FIRST_O = 3, FIRST_GATE = 4, FIRST_DOWN = 6 }; /* q, k, v, o, gate, up, down */

static float dot(const float *a, const float *b, int length) {
    vf sum[PARTS] = {{0}};
    int i = 0;
    for (; i + LANES <= length; i += LANES)
        UNROLLED
        for (int k = 0; k < PARTS; k++)
            sum[k] = multiply_add(load(a + i + k * REGISTER), load(b + i + k * REGISTER), sum[k]);
    float rest = 0;
    for (; i < length; i++) rest += a[i] * b[i];
    return sum_of(sum) + rest;
}

/* Products that share their input, side by side in one matrix; rows without an adapter are left alone. */
typedef struct {
    const LowRank *adapters;   /* (adapters, layers, ADAPTED) */
    const int32_t *adapter_of; /* (rows), −1 for none */
    int layers, layer, first, count;
    const Rounded *x;
    float *out; /* (rows, width) */
    int width;
} Adapt;

static void adapt_rows(void *job, int from, int to, int thread) {
    (void)thread;
    const Adapt *a = job;
    for (int row = from; row < to; row++) {
        if (a->adapter_of[row] < 0) continue;
        const LowRank *each = a->adapters + ((size_t)a->adapter_of[row] * (size_t)a->layers + (size_t)a->layer) * ADAPTED;
        float x[a->x->groups * GROUP], *out = a->out + (size_t)row * (size_t)a->width;
        unrounded_row(a->x, row, x);
        for (int i = a->first; i < a->first + a->count; out += each[i++].outputs) {
            float middle[each[i].rank + 1];
            for (int k = 0; k < each[i].rank; k++) middle[k] = dot(each[i].down + (size_t)k * each[i].inputs, x, each[i].inputs);
            for (int o = 0; o < each[i].outputs && each[i].rank; o++)
                out[o] += dot(each[i].up + (size_t)o * each[i].rank, middle, each[i].rank);
        }
    }
}
