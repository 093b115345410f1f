/* What this processor gives at most: the floor that a pass is measured against. */

#pragma once

#include "lanes.h"
#include "team.h"

enum { STRIP = 1 << 16, CHAINS = 12, DOTS = 1 << 16 };

typedef struct {
    const uint8_t *data;
    vi *kept; /* (threads), so that no compiler leaves the work out */
} Probe;

static void read_strips(void *job, int from, int to, int thread) {
    Probe *probe = job;
    vi sum = {0};
    for (size_t at = (size_t)from * STRIP; at < (size_t)to * STRIP; at += 4 * REGISTER) {
        fetch(probe->data + at + AHEAD);
        sum += *(const vi *)(probe->data + at);
    }
    probe->kept[thread] += sum;
}

/* Products of whole numbers on registers alone. */
static void multiply_registers(void *job, int from, int to, int thread) {
    Probe *probe = job;
    vb numbers = (vb)probe->kept[thread] & 7;
    int8_t x[4 * CHAINS] = {1, 2, 3, 4};
    vi sum[CHAINS];
    UNROLLED
    for (int i = 0; i < CHAINS; i++) sum[i] = (vi){0};
    for (int piece = from; piece < to; piece++)
        for (int n = 0; n < DOTS / CHAINS; n++) {
            __asm__ volatile("" : : "r"(x) : "memory"); /* else products of the same numbers are computed once */
            UNROLLED
            for (int i = 0; i < CHAINS; i++) sum[i] = dot4(sum[i], numbers, x + 4 * i, 4);
        }
    UNROLLED
    for (int i = 0; i < CHAINS; i++) probe->kept[thread] += sum[i];
}

static double timed(Team *team, Work *work, Probe *probe, int pieces) {
    probe->kept = aligned_alloc(sizeof(vi), (size_t)team->threads * sizeof(vi));
    if (probe->kept == NULL) return 0;
    memset(probe->kept, 0, (size_t)team->threads * sizeof(vi));
    double began = seconds();
    together(team, PRODUCTS, work, probe, pieces, 1);
    double took = seconds() - began;
    free(probe->kept);
    return took;
}

/* Bytes per second that come from memory; `bytes` is a multiple of STRIP and far more than caches hold. 0: no memory. */
double floor_bytes(Team *team, const uint8_t *data, int64_t bytes) {
    double took = timed(team, read_strips, &(Probe){.data = data}, (int)(bytes / STRIP));
    return took > 0 ? (double)bytes / took : 0;
}

/* Additions and multiplications of 8-bit numbers per second. 0: no memory. */
double floor_operations(Team *team) {
    int pieces = 64 * team->threads;
    double took = timed(team, multiply_registers, &(Probe){0}, pieces);
    return took > 0 ? 2.0 * 4 * REGISTER * (DOTS / CHAINS * CHAINS) * pieces / took : 0;
}
