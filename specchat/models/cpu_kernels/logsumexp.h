/* What is to be taken from a row of logits to make log-probabilities of them, and those of some tokens. */

#pragma once

#include "decoder.h"
#include "norm.h"
#include "refuse.h"
#include "team.h"

/* Rows of logits, (…, width): of each that is summed up its place, or NULL for all in order; and its highest logit, in
 * steps of so many numbers. */
typedef struct {
    const float *logits;
    int width;
    const int32_t *places;
    const float *tops;
    size_t step;
    float *sums; /* (summed rows, stretches) */
} LogSumExp;

/* Sums of exponentials, a stretch of a row at a time. A stretch has one sum, whichever thread adds it up. */
static void total_stretches(void *job, int from, int to, int thread) {
    (void)thread;
    const LogSumExp *t = job;
    int width = t->width, stretches = stretches_of(width);
    for (int piece = from; piece < to; piece++) {
        int row = piece / stretches, at = piece % stretches * STRETCH, end = at + STRETCH < width ? at + STRETCH : width;
        const float *logits = t->logits + (size_t)(t->places ? t->places[row] : row) * (size_t)width;
        vf sum[PARTS] = {{0}}, top = all(t->tops[(size_t)row * t->step]);
        for (; at < end; at += LANES)
            UNROLLED
            for (int k = 0; k < PARTS; k++) {
                int left = end - at - k * REGISTER;
                if (left <= 0) continue;
                vf some = load_lanes(logits + at + k * REGISTER, left);
                if (left < REGISTER) some = either(first_lanes(left), some, all(-INFINITY));
                sum[k] += exponential(some - top);
            }
        t->sums[piece] = sum_of(sum);
    }
}

/* The logarithm of the sum of the exponentials of so many rows. */
static void find_logsumexp(Team *team, LogSumExp *t, int rows, float *logsumexp) {
    int stretches = stretches_of(t->width);
    together(team, HEAD, total_stretches, t, rows * stretches, 1);
    for (int row = 0; row < rows; row++) {
        double sum = 0;
        for (int i = 0; i < stretches; i++) sum += t->sums[row * stretches + i];
        logsumexp[row] = t->tops[(size_t)row * t->step] + (float)log(sum);
    }
}

enum { MOST_ASKED = 4096 };

static int asked_check(int rows, int width, int asked, const int32_t *row_of, const int32_t *tokens) {
    if (rows < 1 || width < 1 || asked < 1 || asked > MOST_ASKED) return refuse("%d tokens of %d rows", asked, rows);
    for (int i = 0; i < asked; i++) {
        if (row_of[i] < 0 || row_of[i] >= rows) return refuse("row %d of %d", row_of[i], rows);
        if (tokens[i] < 0 || tokens[i] >= width) return refuse("token %d of %d", tokens[i], width);
    }
    return DONE;
}

/* What logits give some tokens, as logarithms of probabilities: of each its row, and itself; those of one row stand side by
 * side, so that it is summed up once. `best` holds the highest tokens of each row, the highest first, in steps of so many.
 * An Outcome. */
int log_probabilities(Team *team, const float *logits, const int32_t *best, int step, int rows, int width, int asked,
                      const int32_t *row_of, const int32_t *tokens, float *found) {
    if (asked_check(rows, width, asked, row_of, tokens)) return REFUSED;
    int count = 1;
    for (int i = 1; i < asked; i++) count += row_of[i] != row_of[i - 1];
    size_t sums = (size_t)count * (size_t)stretches_of(width);
    if (sums >= MOST_PIECES) return refuse("%d rows of %d logits to sum up", count, width);
    float *memory = malloc(((size_t)count * 3 + sums) * sizeof(float));
    if (memory == NULL) return NO_MEMORY;
    float *tops = memory, *logsumexp = memory + count;
    int32_t *places = (int32_t *)(memory + 2 * count);
    for (int i = 0, at = 0; i < asked; i++) {
        if (i && row_of[i] == row_of[i - 1]) continue;
        places[at] = row_of[i];
        tops[at++] = logits[(size_t)row_of[i] * (size_t)width + (size_t)best[(size_t)row_of[i] * (size_t)step]];
    }
    LogSumExp t = {logits, width, places, tops, 1, memory + 3 * count};
    find_logsumexp(team, &t, count, logsumexp);
    for (int i = 0, at = 0; i < asked; i++) {
        at += i && row_of[i] != row_of[i - 1];
        float value = logits[(size_t)row_of[i] * (size_t)width + (size_t)tokens[i]] - logsumexp[at];
        found[i] = value < 0 ? value : 0; /* what is added up in another order may exceed 1 by its last digit */
    }
    free(memory);
    return DONE;
}
