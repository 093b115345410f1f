/* What queries find in chunks of the text: products with the mean of a chunk's keys. */

#pragma once

#include "workspace.h"

/* Add up the products of a query with the keys of each chunk. Rows behind the last chunk are left out. */
static void score_head(const Pass *p, const uint32_t *query, const uint32_t *keys, float *scores) {
    int size = p->decoder->head_dim, chunks = p->rows->chunks, length = p->rows->chunk_rows;
    for (int i = 0; i < chunks; i++) scores[i] = 0;
    for (int first = 0; first < chunks * length; first += KEYS) {
        float found[2][LANES] __attribute__((aligned(64))); /* of even rows, and of odd ones */
        for (int lane = 0; lane < LANES; lane += REGISTER) {
            vf even = {0}, odd = {0};
            const uint32_t *key = keys + (size_t)first * (size_t)(size / 2) + lane;
            for (int i = 0; i < size / 2; i++, key += KEYS) {
                vu q = all_pairs(query + i);
                even = dot2(even, load_pairs(key), q);
                odd = dot2(odd, load_pairs(key + LANES), q);
            }
            store(found[0] + lane, even);
            store(found[1] + lane, odd);
        }
        for (int i = 0; i < KEYS && first + i < chunks * length; i++) scores[(first + i) / length] += found[i % 2][i / 2];
    }
    /* Queries are scaled so that scores are powers of two. */
    for (int i = 0; i < chunks; i++) scores[i] *= 0.69314718f / (float)length;
}

/* Pieces are heads of queries. */
static void score_heads(void *job, int from, int to, int thread) {
    (void)thread;
    const Pass *p = job;
    const Decoder *d = p->decoder;
    size_t size = (size_t)d->head_dim / 2, of_layer = (size_t)d->heads * (size_t)p->rows->chunks;
    float *scores = p->rows->chunk_scores + (size_t)(p->layer - d->layer) * of_layer;
    for (int head = from; head < to; head++) {
        size_t shared = (size_t)(head / (d->heads / d->kv_heads));
        score_head(p, p->queries + (size_t)head * size, head_rows(p, 0, (int)shared).keys,
                   scores + (size_t)head * (size_t)p->rows->chunks);
    }
}
