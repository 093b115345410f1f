/* What Python hands over: a decoder's weights, and the rows of one pass. */

#pragma once

#include "product.h"

typedef struct {
    const float *input_norm, *mlp_norm;
    const float *q_norm, *k_norm; /* (head_dim), or NULL */
    int32_t rotates;
    Product qkv[3], o, gate_up[2], down;
} Layer;

typedef struct {
    int32_t layers, hidden, heads, kv_heads, head_dim, inter, vocab_size;
    float epsilon;
    const Layer *layer;
    const float *norm;
    Product head;
} Decoder;

/* The rows of one pass. Row r is written to cache row places[r] and sees the cache rows whose mask is set; all rows see
 * the first `common`. What lies in the cache and is not seen must be finite. */
typedef struct {
    int32_t rows, common, end, capacity;
    float *hidden;         /* (rows, hidden), in place */
    const float *turns;    /* (rows, head_dim / 2, 2): cosine and sine */
    const int32_t *places; /* (rows) */
    const uint8_t *mask;   /* (rows, end) */
    uint16_t *keys;        /* (layers, kv_heads, capacity / LANES, head_dim, LANES) float16 */
    uint16_t *values;      /* (layers, kv_heads, capacity, head_dim) float16 */
} Rows;

/* Exponentials of a row's logits are summed up in stretches of so many. */
enum { STRETCH = 4096 };

static inline int stretches_of(int width) { return (width + STRETCH - 1) / STRETCH; }
